"""Predictor and scheduler over the groups of a collector."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from driftline.environment import Task
from driftline.records import Claim, TrajectoryStatus
from driftline.rollout import scheduler
from driftline.rollout.groups import OpenGroup
from driftline.rollout.planner import Planner
from tests.support.records import trajectory

Order = Literal["number", "predicted"]


class Bench:
    """A planner, a clock, and groups of two members."""

    def __init__(self, order: Order) -> None:
        self.now = 0.0
        self.planner = Planner(order, groups_per_step=4, monotonic=lambda: self.now)
        self.groups: dict[int, OpenGroup] = {}

    def open(self, number: int, task: str) -> OpenGroup:
        claim = Claim(number, "c0", 1, task, "v1", 0.0)
        self.groups[number] = OpenGroup(claim, Task(task, "e", {}), 2, 0.0)
        return self.groups[number]

    def begin(self, number: int, member: int) -> int:
        group = self.groups[number]
        group.waiting.remove(member)
        return self.planner.begin(group, member)

    def end(self, number: int, member: int, seconds: float, status: TrajectoryStatus = "ok") -> None:
        group = self.groups[number]
        self.now += seconds
        ended = trajectory(number, member, task_id=group.task.id, environment="e", status=status)
        self.planner.end(group, member, ended)
        group.finished[member] = ended

    def learn(self, number: int, task: str, seconds: float) -> None:
        """A whole group of a task, one member after the other."""
        self.open(number, task)
        for member in (0, 1):
            self.begin(number, member)
            self.end(number, member, seconds)
        del self.groups[number]

    def starts(self, free: int = 9, limit: int = 99) -> list[tuple[int, int]]:
        return self.planner.starts(self.groups.values(), free, limit, slots=4)


def test_by_number_nothing_changes_but_predictions_are_held_to_account() -> None:
    bench = Bench("number")
    bench.learn(0, "long", 9.0)
    bench.learn(1, "short", 1.0)
    bench.open(5, "long")
    bench.open(4, "short")
    assert bench.starts() == [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert bench.starts(limit=5) == [(4, 0), (4, 1)]
    assert bench.begin(5, 0) == scheduler.priority(5)
    assert bench.planner.ahead_groups == 2
    error = bench.planner.error()
    assert (error["unpredicted"], error["predicted"]) == (1, 3)


def test_by_prediction_the_longest_of_a_batch_go_first() -> None:
    bench = Bench("predicted")
    bench.open(4, "short")
    bench.open(5, "long")
    assert bench.starts() == [(4, 0), (4, 1), (5, 0), (5, 1)], "nothing is known: in order"
    for number in range(3):
        bench.learn(number, "long", 9.0)
        bench.learn(number, "short", 0.5)
    bench.open(8, "long")
    assert bench.starts() == [(5, 0), (5, 1), (4, 0), (4, 1), (8, 0), (8, 1)]
    assert bench.starts(free=1) == [(5, 0)]
    assert bench.starts(free=0) == []
    assert bench.begin(5, 0) < bench.begin(4, 0) < bench.begin(8, 0)
    assert bench.planner.ahead_groups == 4


def test_only_what_ended_by_itself_teaches() -> None:
    bench = Bench("predicted")
    bench.open(0, "t")
    bench.begin(0, 0)
    bench.end(0, 0, 5.0, status="timeout")
    group = bench.groups[0]
    bench.begin(0, 1)
    bench.planner.end(group, 1, None)
    assert bench.planner.error() == {"predicted": 0, "unpredicted": 0}


def test_a_group_that_comes_back_with_another_attempt_is_another() -> None:
    """It took 3 s from its own start, not 13 from that of the attempt that was lost."""
    bench = Bench("predicted")
    lost = bench.open(0, "t")
    bench.begin(0, 0)
    bench.now = 10.0
    again = bench.open(0, "t")
    again.claim = replace(again.claim, attempt=2)
    bench.begin(0, 0)
    bench.planner.end(lost, 0, None)
    bench.end(0, 0, 3.0)
    learnt = bench.planner._predict(again)
    assert learnt is not None
    assert learnt.seconds.middle == pytest.approx(3.0)


def test_windows_that_the_slots_do_not_reach_are_not_looked_at() -> None:
    bench = Bench("predicted")
    bench.learn(0, "t", 1.0)
    looked: list[int] = []
    work = bench.planner._work

    def note(group: OpenGroup) -> scheduler.GroupWork:
        looked.append(group.number)
        return work(group)

    bench.planner._work = note
    for number in range(12):
        bench.open(number, "t")
    assert len(bench.starts(free=8)) == 8
    assert looked == [0, 1, 2, 3]
    looked.clear()
    assert len(bench.starts(free=9)) == 9
    assert looked == list(range(8))
    for number in range(4):
        bench.groups[number].waiting.clear()
    looked.clear()
    assert bench.starts(free=1) == [(4, 0)]
    assert looked == [4, 5, 6, 7]
    assert bench.starts(free=9, limit=5) == [(4, 0), (4, 1)]
