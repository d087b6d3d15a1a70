"""What a cell tells of itself: its offset report, its stretches of the timeline, metrics, traces, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.engine.protocol import Engine
from driftline.params import TrackingParameters
from driftline.records import CellAccount, Group, Head, OffsetReport, Span, Trajectory
from driftline.rollout.background import StoreThreads
from driftline.rollout.episode import Episode
from driftline.rollout.follower import Applied
from driftline.rollout.meters import BusyMeter, LagMeter, WaitingMeter
from driftline.rollout.pool import PoolFigures
from driftline.rollout.tally import TokenTally
from driftline.store.run_store import RunStore
from driftline.tracking import metrics, timeline
from driftline.tracking.sink import Sink
from driftline.tracking.summary import PAUSE
from driftline.tracking.traces import episode_trace

SPANS_PERIOD_S = 5.0
GAUGES_PERIOD_S = 10.0


@dataclass(slots=True)
class Counters:
    """What a cell has done since it started."""

    episodes: int = 0
    failed: int = 0
    cancelled: int = 0
    groups: int = 0
    lost_groups: int = 0


class Telemetry:
    """Takes note without waiting; `report` sends, and is called by one task only."""

    def __init__(
        self,
        *,
        run_store: RunStore,
        cell: str,
        tally: TokenTally,
        waiting: WaitingMeter,
        engine: Engine,
        sink: Sink,
        tracking: TrackingParameters,
        busy: BusyMeter,
        threads: StoreThreads,
        on_progress: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = Counters()
        self.waiting = waiting
        self.prediction_error: Callable[[], Mapping[str, float]] = dict[str, float]
        """What `Predictor.error` says."""
        self.episodes_limit: Callable[[], int] = int
        """How many episodes may be in flight."""
        self.works: Callable[[], bool] = bool
        """Whether anything is under way; for a look from another thread, as `progress` is."""
        self.lag = LagMeter()
        self.pool_figures: Callable[[], PoolFigures] = lambda: PoolFigures(0, 0, 0)
        self._run_store = run_store
        self._cell, self._tally = cell, tally
        self._earlier: tuple[CellAccount, ...] = ()
        self._engine = engine
        self._sink = sink
        self._tracking = tracking
        self._busy = busy
        self._threads = threads
        self._on_progress = on_progress
        self._clock = clock
        self._version = 0
        self._applied: Applied | None = None
        self._probe_difference_nats: float | None = None
        self._refused_version: int | None = None
        self._spans: list[Span] = []
        self._span_sequence = 0
        self._spans_sent = clock()
        self._gauges_sent = clock()
        self._tokens_then = engine.status().generated_tokens
        self._traces_left = 0

    def progress(self) -> Hashable:
        """Changes whenever an episode, a claim, a token, a tool, an update or a write comes to its end."""
        waited_s, tokens = sum(self.waiting.seconds.values()), self._engine.status().generated_tokens
        return self.counters.episodes, self.counters.groups, self._busy.ended, self._version, waited_s, tokens

    async def begin(self) -> None:
        """Take over what is known of earlier incarnations of the cell, so that nothing of it is forgotten."""
        before = await self._threads.run(self._run_store.offset, self._cell)
        if before is not None:
            self._earlier = before.earlier + ((before.account,) if before.account else ())

    def applied(self, applied: Applied) -> None:
        """The engine has acknowledged a version: close the books of the one before."""
        self._close_stretches()
        self._log_gauges()
        self._version, self._applied = applied.report.version.number, applied
        report = applied.report
        self._probe_difference_nats = report.probe_error if report.applied else None
        pause = (applied.applied_unix - report.pause_s, applied.applied_unix)
        self._spans.append(self._span(timeline.APPLY, "update", (applied.seen_unix, applied.applied_unix)))
        if report.applied:
            self._spans.append(self._span(timeline.APPLY, PAUSE, pause))
        self._sink.log(
            {
                metrics.APPLY_SECONDS: applied.applied_unix - applied.seen_unix,
                metrics.APPLY_FETCH_SECONDS: report.fetch_s,
                metrics.APPLY_LOAD_SECONDS: report.load_s,
                metrics.ENGINE_PAUSE_SECONDS: report.pause_s,
                metrics.PROBE_ERROR: report.probe_error,
            },
            step=self._version,
        )
        every = self._tracking.traces_every_steps
        if every and self._version % every == 0:
            self._traces_left = self._tracking.traces_per_sample
        self._on_progress(
            {
                "event": "progress",
                "cell": self._cell,
                "version": self._version,
                "groups": self.counters.groups,
                "episodes": self.counters.episodes,
                "pause_s": report.pause_s,
            }
        )

    def refused(self, version: int, difference_nats: float) -> None:
        """The engine does not reproduce the probe of a version, and has ended: the last report says so."""
        self._refused_version, self._probe_difference_nats = version, difference_nats

    def finished(self, episode: Episode, trajectory: Trajectory) -> None:
        """An episode has ended."""
        self.counters.episodes += 1
        self.counters.failed += trajectory.status in ("env_error", "timeout", "engine_error")
        self.counters.cancelled += trajectory.status == "cancelled"
        if self._traces_left and trajectory.sampled_tokens:
            self._traces_left -= 1
            self._sink.log_episode(episode_trace(trajectory, episode.messages))

    def written(self, groups: Sequence[Group]) -> None:
        """Groups are in the store."""
        self.counters.groups += len(groups)

    async def report(self, head: Head, running: int, waiting: int, *, final: bool = False) -> None:
        """Write the offset report, and now and then what has gathered of the timeline and the gauges."""
        now = self._clock()
        await self._threads.run(self._run_store.write_offset, self._offset(head, running, waiting, now))
        if final or now - self._gauges_sent >= GAUGES_PERIOD_S:
            self._log_gauges()
        if final or now - self._spans_sent >= SPANS_PERIOD_S:
            await self._send_spans(now)

    def _offset(self, head: Head, running: int, waiting: int, now: float) -> OffsetReport:
        applied = self._applied
        return OffsetReport(
            run=self._run_store.run,
            cell=self._cell,
            incarnation=self._tally.incarnation,
            version=self._version,
            head_version=head.version.number if head.version else 0,
            applied_unix=applied.applied_unix if applied else 0.0,
            heartbeat_unix=now,
            running_episodes=running,
            waiting_episodes=waiting,
            generated_tokens=self._engine.status().generated_tokens,
            pause_s=applied.report.pause_s if applied else 0.0,
            probe_difference_nats=self._probe_difference_nats,
            refused_version=self._refused_version,
            account=self._tally.account(),
            earlier=self._earlier,
            loop_lag_p99_s=self.lag.newest.p99_s if self.lag.newest else None,
        )

    async def _send_spans(self, now: float) -> None:
        self._spans_sent = now
        self._close_stretches()
        spans, self._spans = self._spans, []
        if spans:
            process = f"{self._cell}-{self._tally.incarnation}"
            sequence, self._span_sequence = self._span_sequence, self._span_sequence + 1
            await self._threads.run(self._run_store.append_spans, process, sequence, spans)

    def _close_stretches(self) -> None:
        """Book what was busy and what was waited for so far on the version held so far."""
        self._spans += [self._span(timeline.ROLLOUT, "episodes", interval) for interval in self._busy.take()]
        self._spans += [
            self._span(timeline.WAITING_ROLLOUT, cause, interval) for cause, interval in self.waiting.take()
        ]

    def _span(self, lane: str, cause: str, interval: tuple[float, float]) -> Span:
        return Span(lane, cause, *interval, self._version, {"cell": self._cell})

    def _log_gauges(self) -> None:
        now, status = self._clock(), self._engine.status()
        elapsed = now - self._gauges_sent
        if elapsed <= 0.0 or self._applied is None:
            return
        self._sink.log(
            {
                metrics.TOKENS_PER_SECOND: (status.generated_tokens - self._tokens_then) / elapsed,
                metrics.GENERATED_TOKENS: status.generated_tokens,
                metrics.ENGINE_RUNNING: status.running,
                metrics.ENGINE_WAITING: status.waiting,
                metrics.ENGINES_SERVING: status.engines,
                metrics.EPISODES_RUNNING: self._busy.running_now,
                metrics.EPISODES_LIMIT: self.episodes_limit(),
                metrics.KV_CACHE_SHARE: status.kv_cache_share,
                metrics.PREEMPTIONS: status.preemptions,
                metrics.PREFIX_HIT_SHARE: status.prefix_hit_share,
                metrics.GROUPS_FINISHED: self.counters.groups,
                metrics.EPISODES_FAILED: self.counters.failed,
                metrics.EPISODES_CANCELLED: self.counters.cancelled,
            }
            | self._prediction_gauges()
            | self._health_gauges(),
            step=self._version,
        )
        self._gauges_sent, self._tokens_then = now, status.generated_tokens

    def _health_gauges(self) -> dict[str, float]:
        pool, lag = self.pool_figures(), self.lag.take()
        gauges: dict[str, float] = {
            metrics.THREADS_LOST: pool.threads_lost,
            metrics.ENVIRONMENTS_MADE: pool.made,
            metrics.ENVIRONMENTS_REUSED: pool.reused,
        }
        return gauges if lag is None else gauges | {metrics.LOOP_LAG_P50: lag.p50_s, metrics.LOOP_LAG_P99: lag.p99_s}

    def _prediction_gauges(self) -> dict[str, float]:
        error = self.prediction_error()
        names = {
            metrics.PREDICTION_ERROR: "seconds_log_error",
            metrics.PREDICTION_COVERAGE: "seconds_coverage",
            metrics.PREDICTION_SKILL: "seconds_skill",
            metrics.TOKEN_PREDICTION_ERROR: "sampled_tokens_log_error",
            metrics.TOKEN_PREDICTION_COVERAGE: "sampled_tokens_coverage",
            metrics.TOKEN_PREDICTION_SKILL: "sampled_tokens_skill",
        }
        return {metric: error[name] for metric, name in names.items() if name in error}
