"""What a cell starts next, and what it expects of that: the scheduler and the predictor over its open groups.

    open groups ─▶ predictor ─▶ scheduler ─▶ (group, member) to start
                       ▲                             │
                       └── what it took ◀── episode ◀┘

The predictor learns in either order, so that its error is known before one goes by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from driftline.records import Trajectory
from driftline.rollout import scheduler
from driftline.rollout.groups import OpenGroup
from driftline.rollout.predictor import Prediction, Predictor, Work
from driftline.rollout.scheduler import GroupWork

CLAIM_AHEAD_GROUPS = 2
UNKNOWN_S = 1.0
"""Stands for every duration while no episode has ended: all are alike then."""


@dataclass(frozen=True, slots=True)
class _Begun:
    began: float
    predicted: Prediction | None


class Planner:
    """Says what to start. One for each collector; not thread-safe."""

    def __init__(
        self,
        order: Literal["number", "predicted"],
        *,
        groups_per_step: int,
        predictor: Predictor | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = order
        self._groups_per_step = groups_per_step
        self._predictor = predictor or Predictor()
        self._monotonic = monotonic
        self._begun: dict[tuple[int, int, int], _Begun] = {}
        """Of (group, attempt, member), while it is played."""

    @property
    def ahead_groups(self) -> int:
        """Groups to claim beyond those that fill the slots: a whole batch, where there is to be a choice."""
        return CLAIM_AHEAD_GROUPS if self._order == "number" else max(CLAIM_AHEAD_GROUPS, self._groups_per_step)

    def starts(
        self, groups: Iterable[OpenGroup], free_slots: int, limit: int, *, slots: int
    ) -> list[tuple[int, int]]:
        """Which (group, member) to start now, in order; at most `free_slots`, of groups below `limit`."""
        if free_slots <= 0:
            return []
        if self._order == "number":
            waiting = {group.number: group.waiting for group in groups if group.waiting}
            return scheduler.starts(waiting, free_slots, limit)
        work = [self._work(group) for group in self._needed(groups, free_slots, limit)]
        return scheduler.starts_by_prediction(
            work, free_slots, limit, slots=slots, groups_per_step=self._groups_per_step
        )

    def begin(self, group: OpenGroup, member: int) -> int:
        """A member begins; returns the priority of its requests in the engine."""
        predicted = self._predict(group)
        self._begun[group.number, group.claim.attempt, member] = _Begun(self._monotonic(), predicted)
        if self._order == "number":
            return scheduler.priority(group.number)
        return scheduler.priority_by_prediction(group.number, self._groups_per_step, _seconds(predicted))

    def end(self, group: OpenGroup, member: int, trajectory: Trajectory | None) -> None:
        """A member that had begun has ended; what did not end by itself, or has no trajectory, teaches nothing."""
        begun = self._begun.pop((group.number, group.claim.attempt, member))
        if trajectory is not None and trajectory.status in ("ok", "truncated") and trajectory.sampled_tokens:
            work = Work(trajectory.task_id, trajectory.environment, trajectory.loss_mask.index(True))
            seconds = self._monotonic() - begun.began
            self._predictor.observe(work, seconds, trajectory.sampled_tokens, begun.predicted)

    def error(self) -> Mapping[str, float]:
        """How wrong the predictions were so far (`Predictor.error`)."""
        return self._predictor.error()

    def _needed(self, groups: Iterable[OpenGroup], free_slots: int, limit: int) -> list[OpenGroup]:
        """The groups of those windows alone whose waiting members fill the slots: predictions cost time."""
        ordered = sorted(
            (group for group in groups if group.number < limit and not group.complete),
            key=lambda group: group.number,
        )
        needed: list[OpenGroup] = []
        members = 0
        for _, window in groupby(ordered, key=lambda group: scheduler.window_of(group.number, self._groups_per_step)):
            if members >= free_slots:
                break
            of_window = list(window)
            waiting = sum(len(group.waiting) for group in of_window)
            needed += of_window if waiting else []
            members += waiting
        return needed

    def _work(self, group: OpenGroup) -> GroupWork:
        waiting = dict.fromkeys(group.waiting, _seconds(self._predict(group)) if group.waiting else 0.0)
        return GroupWork(group.number, waiting, group.unfinished, self._running_s(group))

    def _running_s(self, group: OpenGroup) -> float:
        now, attempt = self._monotonic(), group.claim.attempt
        begun = [
            self._begun[key] for member in group.playing if (key := (group.number, attempt, member)) in self._begun
        ]
        return sum(one.predicted.seconds.rest(now - one.began) if one.predicted else UNKNOWN_S for one in begun)

    def _predict(self, group: OpenGroup) -> Prediction | None:
        return self._predictor.predict(Work(group.task.id, group.task.environment, _prompt_tokens(group)))


def _prompt_tokens(group: OpenGroup) -> int | None:
    """Length of the group's prompt, if a member has seen it: it is the same for all."""
    return next((episode.prompt_tokens for episode in group.episodes.values() if episode.prompt_tokens), None)


def _seconds(predicted: Prediction | None) -> float:
    return UNKNOWN_S if predicted is None else predicted.seconds.mean
