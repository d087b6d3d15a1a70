"""Which task-set version the next groups come from, and how the policy does on each pool of it.

A refresh publishes versions while the run goes on. The trainer looks at the task set's head before each commit, and
takes a new version up with it: from a group number on that no head has admitted yet, so that every group is of one
version, wherever it is played, and however often.

It takes up only what was made from the version in use, however many refreshes lie between: another run's first
version, under the same name, is not this run's business. Environments that fail too often are left out of the version
in use, and of what is taken up after it.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from driftline.errors import CorruptObject, LimitExceeded, ObjectMissing
from driftline.params import RunParameters
from driftline.records import EpisodeCounts, GroupUse, Head, StepRecord, TaskSampling, decode
from driftline.store import keys, tasksets
from driftline.store.protocol import ObjectStore
from driftline.store.tasksets import TaskSet, TaskSetHead
from driftline.tracking import metrics
from driftline.tracking.summary import mean
from driftline.training import curriculum

log = logging.getLogger(__name__)

TaskSets = tuple[tuple[int, str], ...]
QUARANTINED = "quarantined"
"""In the lineage of a version that a run has made for itself: the environments that are left out."""


def admission_limit(head: Head, groups_per_step: int) -> int:
    """Group number below which a head lets groups start."""
    return head.spent + groups_per_step + head.lead_groups


def first_unadmitted(records: Sequence[StepRecord], head: Head, groups_per_step: int) -> int:
    """The lowest group number that no head of the run has admitted yet.

    Args:
        records: All committed steps, in order.
        head: The run's head.
        groups_per_step: Groups in a batch.
    """
    spent, highest = 0, admission_limit(head, groups_per_step)
    for record in records:
        spent += len(record.give_ups)
        highest = max(highest, spent + groups_per_step + record.lead_groups)
        spent += len(record.groups)
    return highest


def taken_up(task_sets: TaskSets, first: int, version: str) -> TaskSets:
    """HEAD's pairs with another version from group `first` on; one that no group was admitted from is replaced."""
    return (*(pair for pair in task_sets if pair[0] < first), (first, version))


class TaskSetFollower:
    """Follows the head of a run's task set."""

    def __init__(self, store: ObjectStore, params: RunParameters, records: Sequence[StepRecord], head: Head) -> None:
        """Begin after the committed steps of the run, in order, with its head."""
        self._store = store
        self._name = params.environment.task_set
        self._groups_per_step = params.rollout.groups_per_step
        self._follow = params.environment.follow_task_set
        self._by_learnability = params.environment.task_sampling == "learnability"
        self._group_size = params.rollout.group_size
        self._recent = deque(records, maxlen=curriculum.RECENT_STEPS)
        self._unadmitted = first_unadmitted(records, head, self._groups_per_step)
        self._etag = ""
        self._sets: dict[str, TaskSet | None] = {}

    def next(self, head: Head, quarantined: Mapping[str, EpisodeCounts] | None = None) -> TaskSets:
        """The pairs of the head that is about to be committed in place of `head`.

        Args:
            head: The run's head.
            quarantined: Environments that have failed too often: their tasks are left out.

        Raises:
            LimitExceeded: No other environment is left.
        """
        self._unadmitted = max(self._unadmitted, admission_limit(head, self._groups_per_step))
        current = head.task_sets[-1][1]
        rest = self._without(current, quarantined) if quarantined else None
        if rest is not None:
            return taken_up(head.task_sets, self._unadmitted, rest)
        wanted = self._newest() if self._follow else None
        if wanted is None or wanted == current or not self._may_replace(wanted, current):
            return head.task_sets
        if quarantined:
            try:
                wanted = self._without(wanted, quarantined) or wanted
            except LimitExceeded as error:
                log.error("version %s of task set %s is not taken up: %s", wanted, self._name, error)
                return head.task_sets
        log.info("task set %s: version %s from group %d on", self._name, wanted, self._unadmitted)
        return taken_up(head.task_sets, self._unadmitted, wanted)

    def sampling(self, head: Head, record: StepRecord) -> tuple[TaskSampling, ...]:
        """The samplings of the head that is about to be committed, with a record, in place of `head`.

        They are asked for after the pairs (`next`), and hold for the same groups.
        """
        if not self._by_learnability:
            return head.task_sampling
        self._recent.append(record)
        sampling = curriculum.task_sampling([*self._recent], self._unadmitted, self._group_size)
        return curriculum.taken_up(head.task_sampling, sampling)

    def metrics(self, uses: Sequence[GroupUse], head: Head) -> dict[str, float]:
        """How the batch did on each pool, and on the newest version, by the names of the table."""
        success, newest = defaultdict[str, list[float]](list), head.task_sets[-1][1]
        for use in uses:
            pool = self._pool(use)
            if pool is not None and pool in metrics.POOL_SUCCESS and use.valid_members:
                success[pool].append(use.success_mean)
        of_newest = [use.success_mean for use in uses if use.task_set == newest and use.valid_members]
        older = [use.success_mean for use in uses if use.task_set != newest and use.valid_members]
        return {
            metrics.TASK_SET_NUMBER: float(len(head.task_sets) - 1),
            metrics.EFFECTIVE_STRATA: curriculum.effective_strata(uses),
            metrics.TASK_SET_SHARE: len(of_newest) / max(1, len(of_newest) + len(older)),
            **({metrics.TASK_SET_SUCCESS: mean(of_newest) or 0.0} if of_newest else {}),
            **({metrics.TASK_SET_SUCCESS_OLDER: mean(older) or 0.0} if older else {}),
            **{metrics.POOL_SUCCESS[pool]: mean(found) or 0.0 for pool, found in sorted(success.items())},
            **{metrics.POOL_SHARE[pool]: len(found) / len(uses) for pool, found in sorted(success.items())},
        }

    def _without(self, current: str, quarantined: Mapping[str, EpisodeCounts]) -> str | None:
        """Publish a version without the tasks of some environments; None if it has none of them.

        Only this run uses it: the task set's head stays where it is.
        """
        found = self._set(current)
        if found is None or not any(task.environment in quarantined for task in found.tasks):
            return None
        kept = [task for task in found.tasks if task.environment not in quarantined]
        told = "; ".join(
            f"{name}: {counts.failures} of its last {counts.episodes} episodes failed, {counts.timeouts} out of time"
            for name, counts in quarantined.items()
        )
        if not kept:
            raise LimitExceeded(
                f"no environment is left to play, all are quarantined ({told}): mend them, or raise "
                "limits.environment_failures"
            )
        log.error("quarantined: %s", told)
        notes = {task.id: found.notes[task.id] for task in kept} if found.notes else {}
        pools = {note.pool for note in notes.values()}
        weights = {pool: weight for pool, weight in found.weights.items() if pool in pools}
        if pools and not weights:
            weights = dict.fromkeys(sorted(pools), 1.0)
        return tasksets.publish(
            self._store, self._name, kept, notes=notes, weights=weights, parent=current,
            lineage={QUARANTINED: " ".join(quarantined)}, make_newest=False,
        )  # fmt: skip

    def _newest(self) -> str | None:
        """The newest version, if the task set's head has changed since the last look."""
        key = keys.task_set_head(self._name)
        try:
            found = self._store.get_if_changed(key, self._etag) if self._etag else self._store.get(key)
            if found is None:
                return None
            self._etag = found.etag
            return decode(TaskSetHead, found.body, key=key).version
        except ObjectMissing:
            return None
        except CorruptObject as error:
            log.error("the head of task set %s is passed over: %s", self._name, error)
            return None

    def _may_replace(self, wanted: str, current: str) -> bool:
        """Whether a version comes of the current one, and can be read."""
        try:
            if self._origin(current) not in tasksets.ancestors(self._store, self._name, wanted):
                log.info("task set %s: version %s was not made from %s", self._name, wanted, current)
                return False
            self._sets[wanted] = tasksets.load_set(self._store, self._name, wanted)
        except (ObjectMissing, CorruptObject) as error:
            log.error("version %s of task set %s is not taken up: %s", wanted, self._name, error)
            return False
        return True

    def _origin(self, version: str) -> str:
        """What the task set's head has named: of a version that this run has made, the one that it was made from."""
        while True:
            found = tasksets.manifest(self._store, self._name, version)
            if QUARANTINED not in found.lineage or found.parent is None:
                return version
            version = found.parent

    def _pool(self, use: GroupUse) -> str | None:
        """The pool of a group's task; None where its version has none, or cannot be read any more."""
        found = self._set(use.task_set)
        note = found.notes.get(use.task_id) if found is not None else None
        return note.pool if note is not None else None

    def _set(self, version: str) -> TaskSet | None:
        """A version, read once; None where it cannot be read any more."""
        if version not in self._sets:
            try:
                self._sets[version] = tasksets.load_set(self._store, self._name, version)
            except (ObjectMissing, CorruptObject):
                self._sets[version] = None
        return self._sets[version]
