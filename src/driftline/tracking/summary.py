"""What a run's records amount to. Pure; missing measurements are None, never invented.

Definitions (per step, the step being the stretch from the previous commit to its own):

- *rollout* is the wall clock in which a request executed or a tool ran (lane `rollout` of the timeline), *training*
  that from batch taken to optimizer done;
- **overlap efficiency** is the longer of the two over the step, and **pipeline overhead** the step minus the longer;
- a pool is **idle** whenever its lane is empty: publishing and applying weights count as idle time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftline.records import EvaluationResult, Span, StepRecord
from driftline.tracking import metrics, timeline
from driftline.tracking.intervals import Interval, usage

PAUSE = "pause"
"""Cause of the spans on lane `apply` in which the engine stood still."""


@dataclass(frozen=True, slots=True)
class StepSplit:
    """One step's wall clock in seconds. `rollout_s` is None where no cell recorded a timeline."""

    step: int
    wall_s: float
    rollout_s: float | None
    training_s: float

    @property
    def longer_s(self) -> float | None:
        """The longer of rollout and training."""
        return None if self.rollout_s is None else max(self.rollout_s, self.training_s)

    @property
    def overlap_efficiency(self) -> float | None:
        """The longer of the two over the step, in [0, 1]."""
        return None if self.longer_s is None or self.wall_s <= 0 else self.longer_s / self.wall_s

    @property
    def pipeline_overhead_s(self) -> float | None:
        """The step minus the longer of the two; never negative."""
        return None if self.longer_s is None else self.wall_s - self.longer_s


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers; seconds end in `_s`, shares lie in [0, 1]."""

    steps: int
    wall_clock_s: float | None
    time_to_batch_p50_s: float | None
    time_to_batch_p95_s: float | None
    time_to_batch_by_cause_s: Mapping[str, float]
    """Mean over steps of each part of the critical path."""
    overlap_efficiency: float | None
    """Median over steps."""
    overlap_efficiency_mean: float | None
    pipeline_overhead_p50_s: float | None
    rollout_p50_s: float | None
    training_p50_s: float | None
    idle_share_rollout: float | None
    idle_share_train: float | None
    k3_nats: float | None
    """Mean over steps."""
    ess_fraction: float | None
    """Mean over steps."""
    dropped_share: float | None
    """Sampled tokens that admission kept out of training, mean over steps."""
    down_weighted_share: float | None
    """Sampled tokens of the batches whose member weighed less than 1, mean over steps."""
    lag_steps_mean: float | None
    """Over all sampled tokens."""
    lag_steps_max: int | None
    engine_pause_p50_s: float | None
    engine_pause_max_s: float | None
    groups_trained: int
    groups_zero_variance: int
    groups_failed: int
    reward_first: float | None
    """Mean training reward of the first step."""
    reward_last: float | None


def summarize(records: Sequence[StepRecord], spans: Sequence[Span], given_up: Sequence[int] = ()) -> Summary:
    """Sum up a run, finished or not.

    Args:
        records: The committed steps, in order.
        spans: The timeline.
        given_up: Groups given up since the last committed step (`Head.given_up`).
    """
    splits = split_steps(records, spans)
    waits = [max(0.0, record.times.batch_ready - record.times.previous_commit) for record in records]
    window = _window(records)
    pauses = [span.end_unix - span.start_unix for span in spans if (span.lane, span.cause) == (timeline.APPLY, PAUSE)]
    efficiencies = _known(split.overlap_efficiency for split in splits)
    uses = [use for record in records for use in record.groups]
    return Summary(
        steps=len(records),
        wall_clock_s=window[1] - window[0] if window else None,
        time_to_batch_p50_s=quantile(waits, 0.5),
        time_to_batch_p95_s=quantile(waits, 0.95),
        time_to_batch_by_cause_s=_mean_parts(records),
        overlap_efficiency=quantile(efficiencies, 0.5),
        overlap_efficiency_mean=mean(efficiencies),
        pipeline_overhead_p50_s=quantile(_known(split.pipeline_overhead_s for split in splits), 0.5),
        rollout_p50_s=quantile(_known(split.rollout_s for split in splits), 0.5),
        training_p50_s=quantile([split.training_s for split in splits], 0.5),
        idle_share_rollout=idle_share(spans, timeline.ROLLOUT, window),
        idle_share_train=idle_share(record_spans(records), timeline.TRAINING, window),
        k3_nats=mean(_logged(records, metrics.K3)),
        ess_fraction=mean(_logged(records, metrics.ESS_FRACTION)),
        dropped_share=mean(_logged(records, metrics.ADMISSION_DROPPED_SHARE)),
        down_weighted_share=mean(_logged(records, metrics.ADMISSION_DOWN_WEIGHTED_SHARE)),
        lag_steps_mean=_weighted([(use.lag_mean, use.sampled_tokens) for use in uses]),
        lag_steps_max=max((use.lag_max for use in uses), default=None),
        engine_pause_p50_s=quantile(pauses, 0.5),
        engine_pause_max_s=max(pauses, default=None),
        groups_trained=sum(use.weight > 0 for use in uses),
        groups_zero_variance=sum(use.weight == 0 for use in uses),
        groups_failed=len({give_up.group for record in records for give_up in record.give_ups} | set(given_up)),
        reward_first=_logged(records[:1], metrics.REWARD_MEAN)[0]
        if _logged(records[:1], metrics.REWARD_MEAN)
        else None,
        reward_last=_logged(records[-1:], metrics.REWARD_MEAN)[0]
        if _logged(records[-1:], metrics.REWARD_MEAN)
        else None,
    )


def split_steps(records: Sequence[StepRecord], spans: Sequence[Span]) -> list[StepSplit]:
    """Each step's wall clock, and how much of it rollout and training took."""
    rollout = _lane(spans, timeline.ROLLOUT)
    return [_split(record, rollout) for record in records]


def _split(record: StepRecord, rollout: Sequence[Interval]) -> StepSplit:
    times = record.times
    start, end = times.previous_commit, times.committed
    return StepSplit(
        step=record.step,
        wall_s=max(0.0, end - start),
        rollout_s=usage(rollout, start, end).busy_s if rollout else None,
        training_s=usage([(times.train_start, times.train_end)], start, end).busy_s,
    )


def step_metrics(records: Sequence[StepRecord], spans: Sequence[Span]) -> dict[int, dict[str, float]]:
    """What only the whole timeline shows about each step, by metric name, for MLflow."""
    by_step: dict[int, dict[str, float]] = {}
    training = record_spans(records)
    for record, split in zip(records, split_steps(records, spans), strict=True):
        window = (record.times.previous_commit, record.times.committed)
        found = {
            metrics.ROLLOUT_SECONDS: split.rollout_s,
            metrics.OVERLAP_EFFICIENCY: split.overlap_efficiency,
            metrics.PIPELINE_OVERHEAD: split.pipeline_overhead_s,
            metrics.IDLE_SHARE_ROLLOUT: idle_share(spans, timeline.ROLLOUT, window),
            metrics.IDLE_SECONDS_ROLLOUT: None if split.rollout_s is None else split.wall_s - split.rollout_s,
            metrics.IDLE_SHARE_TRAIN: idle_share(training, timeline.TRAINING, window),
            metrics.IDLE_SECONDS_TRAIN: split.wall_s - split.training_s,
        }
        by_step[record.step] = {name: value for name, value in found.items() if value is not None}
    return by_step


def idle_share(spans: Sequence[Span], lane: str, window: Interval | None) -> float | None:
    """Share of the window in which the lane was empty; None where nothing was ever recorded on it."""
    intervals = _lane(spans, lane)
    return usage(intervals, *window).idle_share if intervals and window else None


def record_spans(records: Sequence[StepRecord]) -> list[Span]:
    """Training and publishing by the step records, which are there even where the timeline's tail is not."""
    spans: list[Span] = []
    for record in records:
        times = record.times
        spans.append(Span(timeline.TRAINING, "step", times.train_start, times.train_end, record.step))
        spans.append(Span(timeline.PUBLISH, "weights", times.train_end, times.publish_end, record.step))
    return spans


def held_out_success(evaluations: Iterable[EvaluationResult], version: int | None) -> float | None:
    """Held-out success of a policy version, None where it was not evaluated."""
    return next((found.success for found in evaluations if found.version == version), None)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The quantile by linear interpolation between the closest ranks; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below + (above - below) * (position - math.floor(position))


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return math.fsum(values) / len(values) if values else None


def _window(records: Sequence[StepRecord]) -> Interval | None:
    return (records[0].times.previous_commit, records[-1].times.committed) if records else None


def _lane(spans: Sequence[Span], lane: str) -> list[Interval]:
    return [(span.start_unix, span.end_unix) for span in spans if span.lane == lane]


def _mean_parts(records: Sequence[StepRecord]) -> dict[str, float]:
    causes = dict.fromkeys(cause for record in records for cause in record.time_to_batch_s)
    return {
        cause: math.fsum(record.time_to_batch_s.get(cause, 0.0) for record in records) / len(records)
        for cause in causes
    }


def _logged(records: Iterable[StepRecord], name: str) -> list[float]:
    """The finite values of a metric."""
    values = (record.metrics[name] for record in records if name in record.metrics)
    return [value for value in values if math.isfinite(value)]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _weighted(pairs: Sequence[tuple[float, int]]) -> float | None:
    total = sum(weight for _, weight in pairs)
    return math.fsum(value * weight for value, weight in pairs) / total if total else None
