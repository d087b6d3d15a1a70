# pyright: basic
"""Rank 0's loop: from finished groups to committed steps. The decisions are `batching`'s; this carries them out.

| Step of the loop | consumes | produces | waits for | unblocked by |
|---|---|---|---|---|
| wait for a batch | finished groups | scores, give-ups (HEAD) | enough groups | cells; `limits.batch_deadline_s` |
| train | the batch | new weights | all ranks | the process group's timeout |
| publish | weights | files, manifest | the store | its patience |
| commit | step record | HEAD | the store | its patience; a newer trainer's epoch ends this one |
| checkpoint | trainer state | local files | the checkpoint before, on its way | the background thread |

Cells may run `lead_groups` ahead of `spent` and no further, so neither side can fill the store while the other is
stuck. The order of writes is weights, manifest, step record, HEAD: the swap of HEAD alone is the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftline.divergence.diagnosis import CAUSES
from driftline.errors import DriftlineError, LogprobsNotFinite
from driftline.measured import Diagnosis
from driftline.params import RunParameters
from driftline.records import GroupUse, Head, PolicyVersion, Span, StepRecord, StepTimes, TokenLedger, WeightsManifest
from driftline.store.run_store import RunStore, TrainerLease
from driftline.tracking import metrics
from driftline.tracking.sink import Sink
from driftline.tracking.verdict import StepWatch
from driftline.training import checkpoints
from driftline.training.background import BackgroundWriter
from driftline.training.batch import TrainingBatch
from driftline.training.batching import Judged
from driftline.training.health import EnvironmentHealth, counts_of
from driftline.training.intake import Intake, ReadyBatch
from driftline.training.members import batch_weights, in_batch, name_of_sequence, stepped
from driftline.training.protocol import PolicyTrainer, StepOutcome
from driftline.training.publishing import PolicyPublisher
from driftline.training.recording import measured
from driftline.training.reporting import SHOWN, group_use, imbalance, ledger_metrics
from driftline.training.resume import make_batch, restore
from driftline.training.scoring import GroupScorer
from driftline.training.signing import sign
from driftline.training.steering import Steering, batch_divergence, change_of_cause
from driftline.training.stopwatch import Stopwatch
from driftline.training.store_use import StoreUse
from driftline.training.task_sets import TaskSetFollower

log = logging.getLogger(__name__)

SENT_AGAIN = 3
"""Last steps whose metrics a trainer that takes a run up sends again: the one before it may not have come to it."""


class TrainingLoop:
    """The trainer of one run, as far as the store can see it, while it holds `lease`."""

    def __init__(
        self,
        run_store: RunStore,
        lease: TrainerLease,
        params: RunParameters,
        group: PolicyTrainer,
        sink: Sink,
        *,
        scratch: Path,
        emit: Callable[[Mapping[str, Any]], None],
        signing_key: bytes | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_store = run_store
        self._lease = lease
        self._params = params
        self._group = group
        self._sink = sink
        self._scratch = scratch
        self._emit = emit
        self._signing_key = signing_key
        self._clock = clock
        self._records = run_store.steps()
        self._stopwatch = Stopwatch()
        self._intake = Intake(
            run_store,
            lease,
            self._records,
            params,
            GroupScorer(group, params, stopwatch=self._stopwatch),
            clock=clock,
            sleep=sleep,
            monotonic=monotonic,
            on_damage=self._tell_of_damage,
            diagnose=self._diagnose_unused,
            stopwatch=self._stopwatch,
        )
        self._steering = Steering(self._records, params)
        self._health = EnvironmentHealth(
            params.limits.environment_failures, params.limits.environment_episodes, self._records
        )
        self._task_sets = TaskSetFollower(run_store.store, params, self._records, lease.head)
        self._watch = StepWatch(
            self._records,
            params.model_dump(mode="json"),
            regression_share=params.tracking.batch_regression_share,
        )
        self._store_use = StoreUse(run_store.store, self._records)
        timed = RunStore(self._store_use.store, run_store.run)
        self._publisher = PolicyPublisher(group, timed, params)
        self._writer = BackgroundWriter(run_store, f"trainer-{lease.epoch:04d}")
        self._notes: dict[str, float] = {}
        """Metrics that the next step's record carries, about what came before it."""

    def run(self) -> Head:
        """Train until the run's steps are done. Returns the final head.

        Raises:
            EpochLost: Another trainer has taken over; nothing more may be written.
            LimitExceeded: No batch in time, or too many failed groups.
        """
        try:
            manifest = self._begin()
            previous_commit = self._clock()
            self._emit({"event": "ready", "step": self._lease.head.step, "epoch": self._lease.epoch})
            batches = (self._intake.next_batch() for _ in range(self._lease.head.step, self._params.training.steps))
            for number, ready in enumerate(batches):
                if number == 0:
                    previous_commit = _engines_ready(ready, previous_commit)
                manifest, previous_commit = self._take_step(ready, manifest, previous_commit)
            self._writer.close()
            self._lease.commit(replace(self._lease.head, state="finished"))
        finally:
            self._writer.abandon()
        return self._lease.head

    def fail(self, reason: str) -> None:
        """Say in HEAD that the run has failed, if this trainer still holds the role."""
        try:
            self._lease.commit(replace(self._lease.head, state="failed", reason=reason))
        except DriftlineError as error:
            log.warning("the run's state could not be set to failed: %s", error)

    def _begin(self) -> WeightsManifest:
        """Come to the weights that HEAD names, or publish the base policy as version 0; returns their manifest."""
        head = self._lease.head
        if head.version is None:
            version = PolicyVersion(0, self._lease.epoch)
            manifest = self._publisher.publish(version, previous=None, expect_change=False)
            self._lease.commit(replace(head, version=version))
            return manifest
        if head.step == 0:
            manifest = self._run_store.read_manifest(head.version)
            self._publisher.adopt(manifest)
            return manifest
        restored = restore(
            self._group,
            self._run_store,
            self._params,
            head,
            self._records,
            self._scratch,
            signing_key=self._signing_key,
        )
        if restored.checkpoint is not None:
            self._writer.adopt_checkpoint(restored.checkpoint)
        self._notes = {
            metrics.REPLAYED_STEPS: float(restored.replayed_steps),
            metrics.RESUME_MISMATCH: float(restored.mismatch),
        }
        if not restored.mismatch:
            self._publisher.adopt(restored.manifest)
        for record in self._records[-SENT_AGAIN:]:
            self._sink.log(record.metrics, step=record.step)
        log.info("resumed at step %d (%d steps run again)", head.step, restored.replayed_steps)
        return restored.manifest

    def _take_step(
        self, ready: ReadyBatch, manifest: WeightsManifest, previous_commit: float
    ) -> tuple[WeightsManifest, float]:
        """Train, publish, commit; returns the new manifest, and when the step was committed (Unix seconds)."""
        version, step = manifest.version, self._lease.head.step + 1
        train_start = self._clock()
        with self._stopwatch.running():
            uses = tuple(group_use(judged) for judged in ready.judged)
        weights = batch_weights(uses, ready.groups)
        outcome = self._train(ready, uses, make_batch(ready.groups, weights, version.number, self._params))
        train_end = self._clock()
        with self._stopwatch.running():
            uses = stepped(uses, ready.groups, outcome.statistics, version.number)
            self._intake.used(uses)
        with self._store_use.publishing():
            manifest = self._publisher.publish(
                PolicyVersion(step, self._lease.epoch), previous=manifest, expect_change=self._must_change(outcome)
            )
        now = self._clock()
        times = StepTimes(previous_commit, ready.ready, train_start, train_end, now, now)
        record = self._record(ready, uses, outcome, manifest, times)
        with self._stopwatch.running():
            record, lead_groups = self._steer(record)
        steering = {metrics.STEERING_SECONDS: self._stopwatch.take() + outcome.measuring_s}
        record = replace(record, metrics={**record.metrics, **steering})
        with self._store_use.committing():
            self._commit(record, lead_groups)
        self._report(record, ready)
        self._checkpoint(record)
        return manifest, times.committed

    def _train(self, ready: ReadyBatch, uses: Sequence[GroupUse], batch: TrainingBatch) -> StepOutcome:
        """Take the step; an error of one sequence names the trajectory."""
        try:
            return self._group.train(batch)
        except LogprobsNotFinite as error:
            name = name_of_sequence(uses, ready.groups, error.sequence)
            raise LogprobsNotFinite(f"{name}: {error}") from None

    def _record(
        self,
        ready: ReadyBatch,
        uses: tuple[GroupUse, ...],
        outcome: StepOutcome,
        manifest: WeightsManifest,
        times: StepTimes,
    ) -> StepRecord:
        """Put a step on record that has given the weights of `manifest`: all but what steering adds."""
        head = self._lease.head
        version, step = head.version, head.step + 1
        assert version is not None, "version 0 is published before the first step"
        parts, values = measured(
            ready,
            uses,
            outcome,
            times,
            version=version.number,
            give_ups=len(self._intake.give_ups),
            learning_rate=self._params.training.learning_rate,
            publish_bytes=sum(entry.bytes for entry in manifest.files),
        )
        with self._stopwatch.running():
            frontier, ledger = self._intake.book.advance(), self._intake.book.ledger()
            values |= ledger_metrics(ledger) | self._intake.admission(uses)
            self._check_ledger(ledger, step)
            divergence = batch_divergence(in_batch(uses, ready.groups), outcome.statistics, version.number)
        episodes = counts_of(ready.groups, self._intake.give_ups)
        self._health.see(episodes)
        values |= self._task_sets.metrics(uses, head) | self._health.values
        values |= self._store_use.take(ready.read_s, ledger) | {metrics.DAMAGED_OBJECTS: float(len(head.set_aside))}
        return StepRecord(
            run=self._run_store.run,
            step=step,
            epoch=self._lease.epoch,
            version_in=version,
            version_out=manifest.version,
            groups=uses,
            give_ups=tuple(self._intake.give_ups),
            metrics=values | self._notes,
            time_to_batch_s=parts,
            times=times,
            previous=head.record,
            checkpoint=self._writer.newest_checkpoint,
            frontier=frontier,
            ledger=ledger,
            lead_groups=head.lead_groups,
            by_lag=divergence.by_lag,
            by_environment=divergence.by_environment,
            floor_by_cell=divergence.floor_by_cell,
            incarnations=divergence.incarnations,
            episodes=episodes,
        )

    def _check_ledger(self, ledger: TokenLedger, step: int) -> None:
        if ledger.imbalance:
            log.error("%s: %s", imbalance(ledger, step), ledger.incarnations)
            self._emit({"event": "warning", "type": "LedgerImbalance", "message": imbalance(ledger, step)})

    def _steer(self, record: StepRecord) -> tuple[StepRecord, int]:
        """Complete the record by what follows from it; returns it, and the lead of the next step, in groups."""
        before = self._steering.diagnosis
        record, lead_groups = self._steering.judge(record, self._intake.reports)
        self._tell_of_cause(before, record.diagnosis, record.step)
        return record, lead_groups

    def _diagnose_unused(self, scored: Sequence[Judged]) -> str:
        """Say why groups are given up, and no step comes of them; what is said by `_steer` once one does."""
        before, step = self._steering.diagnosis, self._lease.head.step + 1
        found = self._steering.diagnose_unused(scored, self._intake.reports)
        if found is None:
            return ""
        self._tell_of_cause(before, found, step)
        self._sink.log({metrics.CAUSE: float(CAUSES.index(found.cause))}, step=step)
        return "" if found.cause == "healthy" else f"{found.cause}: {found.why}"

    def _tell_of_cause(self, before: Diagnosis | None, now: Diagnosis | None, step: int) -> None:
        news = change_of_cause(before, now)
        if news:
            log.warning("step %d: %s", step, news)
            self._emit({"event": "warning", "type": "Diagnosis", "message": f"step {step}: {news}"})

    def _tell_of_damage(self, key: str, reason: str) -> None:
        self._emit({"event": "warning", "type": "CorruptObject", "message": f"{key} is set aside: {reason}"})

    def _must_change(self, outcome: StepOutcome) -> bool:
        """Whether the weights after the step must differ from those before."""
        return self._params.training.learning_rate > 0 and outcome.trained_sequences > 0

    def _commit(self, record: StepRecord, lead_groups: int) -> None:
        key = self._run_store.write_step(sign(record, self._signing_key))
        head = self._lease.head
        self._lease.commit(
            replace(
                head,
                step=record.step,
                version=record.version_out,
                record=key,
                spent=head.spent + len(record.groups),
                given_up=(),
                lead_groups=lead_groups,
                task_sets=self._task_sets.next(head, self._health.quarantined),
                task_sampling=self._task_sets.sampling(head, record),
            )
        )
        self._intake.committed()
        self._notes = {}

    def _report(self, record: StepRecord, ready: ReadyBatch) -> None:
        """Tell of a committed step: metrics, timeline, progress, and what has changed with it."""
        times, now, steps = record.times, self._clock(), self._params.training.steps
        for news in self._watch.see(record):
            log.warning("step %d: %s", record.step, news.message)
            told = {
                "type": news.type,
                "message": f"step {record.step}: {news.message}",
                "figures": dict(news.figures),
            }
            self._emit({"event": "warning", **told})
        self._sink.log(
            {**record.metrics, **self._watch.values, metrics.COMMIT_SECONDS: now - times.publish_end},
            step=record.step,
        )
        self._span("waiting/train", "batch", ready.wait_begin, ready.ready)
        self._span("training", "step", times.train_start, times.train_end)
        self._span("publish", "weights", times.train_end, times.publish_end)
        self._span("publish", "commit", times.publish_end, now)
        shown = {name: record.metrics[name] for name in SHOWN}
        self._emit({"event": "progress", "step": record.step, "steps": steps, **shown})
        log.info(
            "step %d of %d: reward %.3f, k3 %.4f nats, lag %.2f, %.2f s",
            record.step,
            steps,
            record.metrics[metrics.REWARD_MEAN],
            record.metrics[metrics.K3],
            record.metrics[metrics.LAG_STEPS_MEAN],
            record.metrics[metrics.STEP_SECONDS],
        )

    def _checkpoint(self, record: StepRecord) -> None:
        if record.step % self._params.checkpoint.every_steps:
            return
        begin = self._clock()
        self._writer.wait_for_checkpoint()
        directory = self._group.save(record.step)
        store = self._run_store.store
        self._writer.checkpoint(
            directory,
            upload=lambda path: checkpoints.upload(store, record.run, record.step, record.epoch, self._params, path),
            remove=self._remove_checkpoint,
            keep=record.checkpoint,
        )
        end = self._clock()
        self._span("waiting/train", "checkpoint", begin, end)
        self._sink.log({metrics.CHECKPOINT_SECONDS: end - begin}, step=record.step)

    def _remove_checkpoint(self, key: str) -> None:
        """Delete an older checkpoint, if the role is still held.

        A trainer that is stopped between the two still takes nothing that its successor needs: it deletes what it
        uploaded or took over itself, but neither the newest of that nor the one that the committed record names.
        """
        self._lease.confirm()
        checkpoints.remove(self._run_store.store, key)

    def _span(self, lane: str, cause: str, start: float, end: float) -> None:
        self._writer.span(Span(lane, cause, start, end, self._lease.head.step))


def _engines_ready(ready: ReadyBatch, trainer_ready: float) -> float:
    """When the wait for a trainer's first batch began (Unix seconds): an engine that still starts is no wait."""
    applied = ready.applied if ready.applied is not None else trainer_ready
    return min(max(applied, trainer_ready), ready.ready)
