"""Rank 0's view of the finished groups: waits for batches, and gives up what cannot be trained on.

Groups are scored as they arrive, and again after each step, the lowest-numbered first: a full batch never waits for
the score of a group outside of it.

Everything it remembers can be read again from the store: what is spent from the step records and HEAD, what is
finished from the trajectories. Scores are made anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from driftline.errors import LimitExceeded
from driftline.params import RunParameters
from driftline.records import GiveUp, Group, GroupUse, OffsetReport, PolicyVersion, StepRecord
from driftline.store.run_store import RunStore, TrainerLease
from driftline.tracking.intervals import Interval, union
from driftline.training.batching import BatchRule, Decision, Judged, decide, judge
from driftline.training.cells import CellReports
from driftline.training.given_up import GivenUp
from driftline.training.ledger import TokenBook
from driftline.training.members import MemberFacts, policy_of
from driftline.training.reporting import admission_metrics
from driftline.training.scoring import GroupScorer
from driftline.training.stopwatch import Stopwatch

log = logging.getLogger(__name__)

POLL_S = 0.05
"""Pause between two looks for finished groups."""
OFFSETS_S = 0.25
"""Pause between two looks at what the engines have acknowledged."""
HEARTBEATS_S = 1.0
"""Pause between two looks at the cells' reports where only their heartbeats are of interest."""
CELLS_S = 0.5
"""Pause between two looks for cells that have not written before."""
ROLE_S = 2.0
"""Pause between two looks whether the role of the trainer is still held."""


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """A full batch."""

    judged: tuple[Judged, ...]
    """By number."""
    wait_begin: float
    """Unix seconds at which the trainer began to wait."""
    ready: float
    """Unix seconds at which it held the batch."""
    applied: float | None
    """Unix seconds at which the last cell acknowledged the version trained from, None where that is not known."""
    read_s: float
    """Seconds of the look for finished groups that completed the batch."""
    admission: tuple[Interval, ...] = ()
    """When groups were scored and judged meanwhile, in Unix seconds."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups themselves."""
        return tuple(judged.group for judged in self.judged)


class Intake:
    """Follows the trajectories of a run for the trainer that holds `lease`."""

    def __init__(
        self,
        run_store: RunStore,
        lease: TrainerLease,
        records: Sequence[StepRecord],
        params: RunParameters,
        scorer: GroupScorer,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        on_damage: Callable[[str, str], None] = lambda key, reason: None,
        diagnose: Callable[[Sequence[Judged]], str] = lambda scored: "",
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Go on behind the frontier of the last record.

        Args:
            run_store: The run's objects.
            lease: The role of the trainer.
            records: All committed steps, in order.
            params: The run's parameters.
            scorer: Measures groups under the weights that HEAD names.
            clock: Unix seconds.
            sleep: Waits.
            monotonic: Seconds.
            on_damage: Called with an object that is set aside, and why.
            diagnose: Called with all groups that were scored since the last step, once admission has given up a
                batch of them; says what is wrong, or nothing.
            stopwatch: Runs while groups are judged and tokens are booked.
        """
        self._spent = {entry.group for record in records for entry in (*record.groups, *record.give_ups)}
        self._gone = GivenUp(records, params.diagnosis.window_steps * params.rollout.groups_per_step)
        self._finished: dict[int, Judged] = {}
        self._diagnose = diagnose
        self._scorer = scorer
        self._admission_s = 0.0
        self._stopwatch = stopwatch or Stopwatch(monotonic)
        self._lease = lease
        self.book = TokenBook(records)
        self._cells = CellReports(run_store, monotonic)
        self._cursor = run_store.trajectory_cursor(
            self.book.frontier.keys, cells_s=CELLS_S, skip=lease.head.set_aside
        )
        self._damaged_objects = params.limits.damaged_objects
        self._on_damage = on_damage
        self._deadline_s = params.limits.batch_deadline_s
        self._rule = BatchRule(params.rollout.groups_per_step, policy_of(params), params.limits.failed_groups)
        self._clock = clock
        self._sleep = sleep
        self._monotonic = monotonic

    @property
    def give_ups(self) -> Sequence[GiveUp]:
        """Given up since the last committed step; the next record repeats them."""
        return self._gone.since_step

    @property
    def reports(self) -> Sequence[OffsetReport]:
        """The cells' newest."""
        return self._cells.newest

    def next_batch(self) -> ReadyBatch:
        """Wait until a batch is full.

        Raises:
            LimitExceeded: It was not in time, or too many groups failed.
            EpochLost: Another trainer has taken over.
        """
        begin, applied, pause_s = self._clock(), None, HEARTBEATS_S
        # By a clock that nobody sets: one that is set forward would end the run.
        began = asked = self._monotonic()
        admission: list[Interval] = []
        while True:
            look = self._monotonic()
            if self._cells.due(pause_s):
                applied = self._look_at_cells() or applied
            self._collect()
            read_s = self._monotonic() - look
            looked = self._clock()
            with self._stopwatch.running():
                decision = self._decide()
            now = self._clock()
            admission = union([*admission, (looked, now)], gap_s=0.001)
            if decision.batch:
                return ReadyBatch(decision.batch, begin, now, applied, read_s, tuple(admission))
            passed = self._monotonic()
            if passed > began + self._deadline_s:
                raise LimitExceeded(self._starved())
            pause_s = OFFSETS_S if applied is None else HEARTBEATS_S
            if passed >= asked + ROLE_S:
                self._lease.confirm()
                asked = passed
            if decision.to_score:
                self._scorer.score(decision.to_score[: self._rule.groups_per_step], self._version().number)
                admission.append((now, self._clock()))
            else:
                self._sleep(POLL_S)

    def used(self, uses: Iterable[GroupUse]) -> None:
        """A step uses these groups, and its record is about to be made."""
        for use in uses:
            self.book.use(use)
            self._spent.add(use.group)

    def admission(self, uses: Sequence[GroupUse]) -> dict[str, float]:
        """What admission made of a batch and of what was given up, by the names of the metrics; ends its account."""
        judging_s, self._admission_s = self._admission_s, 0.0
        forward_s = self._scorer.take_forward_s()
        return admission_metrics(uses, self.give_ups, forward_s=forward_s, judging_s=judging_s)

    def committed(self) -> None:
        """The step that repeats the give-ups is committed."""
        self._gone.committed()

    def _collect(self) -> None:
        """Take in newly finished groups. Those given up before a restart are put on the next record again."""
        groups, deliveries = self._cursor.look()
        with self._stopwatch.running():
            self.book.read(deliveries, groups, self._cursor.positions)
        self._set_aside({delivery.key: delivery.damage for delivery in deliveries if delivery.damage})
        for group in groups:
            if group.number in self._spent:
                continue
            if group.number in self._lease.head.given_up:
                self._note([self._give_up_again(group)])
            else:
                with self._stopwatch.running():
                    self._finished[group.number] = self._judge(group)

    def _set_aside(self, damaged: Mapping[str, str]) -> None:
        """Say in HEAD which objects cannot be read, so that cells play their groups again."""
        head = self._lease.head
        new = {key: reason for key, reason in damaged.items() if key not in head.set_aside}
        if not new:
            return
        for key, reason in new.items():
            self._on_damage(key, reason)
        self._lease.commit(replace(head, set_aside=(*head.set_aside, *new)))
        if len(self._lease.head.set_aside) > self._damaged_objects:
            raise LimitExceeded(
                f"{len(self._lease.head.set_aside)} objects of finished groups cannot be read, limit "
                f"{self._damaged_objects}; the last: {[*new.values()][-1]}: look for what damages them, or raise "
                "limits.damaged_objects"
            )

    def _judge(self, group: Group, facts: tuple[MemberFacts, ...] | None = None) -> Judged:
        begin, version = self._monotonic(), self._version().number
        score = self._scorer.of(group.number, version)
        judged = judge(group, score, version=version, policy=self._rule.policy, facts=facts)
        self._admission_s += self._monotonic() - begin
        return judged

    def _judge_again(self) -> None:
        """Judge what waits since another version, or has been scored since."""
        version = self._version().number
        for number, judged in self._finished.items():
            scored = not judged.final and self._scorer.of(number, version) is not None
            if judged.version != version or scored:
                self._finished[number] = self._judge(judged.group, judged.facts)

    def _give_up_again(self, group: Group) -> GiveUp:
        """A group that HEAD has as given up since the last record: the weights are the same, so the reason is."""
        judged = self._judge(group)
        if not judged.final:
            self._scorer.score([group], judged.version)
            judged = self._judge(group, judged.facts)
        self._gone.note_diverged([judged])
        return judged.give_up(None if judged.reason else "given up before a restart")

    def _decide(self) -> Decision:
        self._judge_again()
        decision = decide(self._finished.values(), failed_before=self._gone.failed, rule=self._rule)
        dropped = [self._finished[give_up.group] for give_up in decision.give_ups]
        self._finished = {judged.group.number: judged for judged in decision.waiting}
        self._scorer.forget([judged.group.number for judged in decision.batch])
        if decision.give_ups:
            self._give_up(decision.give_ups)
            if self._gone.note_diverged(dropped):
                self._cause()
        if decision.exhausted is not None:
            raise LimitExceeded(decision.exhausted)
        return decision

    def _give_up(self, give_ups: Sequence[GiveUp]) -> None:
        """Move HEAD at once, so that cells replace what is given up."""
        for give_up in give_ups:
            log.warning("group %d is given up: %s", give_up.group, give_up.reason)
        head = self._lease.head
        given_up = (*head.given_up, *(give_up.group for give_up in give_ups))
        self._lease.commit(replace(head, spent=head.spent + len(give_ups), given_up=given_up))
        self._note(give_ups)

    def _note(self, give_ups: Sequence[GiveUp]) -> None:
        self._gone.note(give_ups)
        self._spent |= {give_up.group for give_up in give_ups}
        self._scorer.forget([give_up.group for give_up in give_ups])
        self.book.give_up(give_ups)

    def _cause(self) -> str:
        """What is wrong, where a batch of groups was scored and given up; else nothing."""
        if len(self._gone.diverged) < self._rule.groups_per_step:
            return ""
        waiting = (judged for judged in self._finished.values() if judged.score is not None)
        return self._diagnose([*self._gone.diverged, *waiting])

    def _look_at_cells(self) -> float | None:
        """Note the cells' heartbeats; returns when the last of them acknowledged the version trained from."""
        self.book.heartbeats(self._cells.look())
        return self._cells.acknowledged(self._version().number)

    def _version(self) -> PolicyVersion:
        version = self._lease.head.version
        assert version is not None, "version 0 is published before the first batch"
        return version

    def _starved(self) -> str:
        cause = self._cause()
        return (
            f"no full batch in {self._deadline_s:.0f} s: {len(self._finished)} of {self._rule.groups_per_step} groups"
            f" are finished for step {self._lease.head.step + 1}{self._gone}: "
            + (cause or "see the logs of the rollout cells, or raise limits.batch_deadline_s")
        )
