"""Admission over many steps: after a restart, by age in flight and in the queue, and of slow tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.records import Group
from driftline.tracking import metrics
from driftline.tracking.bias import find_bias
from tests.support.admission import (
    CURRENT,
    FAR,
    LIMITS,
    bench_of,
    ledger_of,
    the_step,
    with_logprobs,
)
from tests.support.trainer_bench import Bench, eager_cell, stopped_after, sync
from tests.support.training import FakeGroup, group, parameters, trajectory


def test_give_ups_for_divergence_are_the_same_after_a_restart():
    """The weights are those that gave them up, so the reason, and every term of the ledger, is found again."""

    class Killed(BaseException):
        pass

    def die(bench: Bench) -> None:
        if bench.sequence:
            raise Killed
        bench.finish(with_logprobs(group(0, [1, 0, 1]), m0=FAR, m2=FAR), group(1, [1, 0]))

    bench = bench_of(die)
    with pytest.raises(Killed):
        bench.loop().run()
    assert bench.run_store.read_head()[0].given_up == (0,)
    bench.cell = lambda bench: bench.finish(group(2, [1, 0])) if bench.sequence == 1 else None
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    assert record.give_ups[0].reason.startswith("divergence: 1 of 3 members admitted; dropped 2 x k3")
    assert ledger_of(record).stale_by == {"group": 2, "k3": 4}
    assert bench.run_store.read_head()[0].spent == 3


def test_the_ledger_by_reason_goes_on_across_a_resumption():
    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        begun = len(bench.run_store.new_groups())
        if head.version is not None and begun < head.spent + 2:
            made = group(begun, [1, 0, 0, 1], version=head.version.number)
            bench.finish(with_logprobs(made, m1=FAR) if begun % 2 else made)

    bench = Bench(sync(training={"steps": 4}, admission=LIMITS, checkpoint={"every_steps": 3}), cell)
    bench.group = FakeGroup(CURRENT)
    stopped_after(bench, 2)
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    ledgers = [ledger_of(record) for record in bench.run_store.steps()]
    assert [ledger.stale_by for ledger in ledgers] == [{"k3": 2 * step} for step in (1, 2, 3, 4)]
    assert [ledger.trained for ledger in ledgers] == [14, 28, 42, 56]
    assert bench.run_store.steps()[-1].frontier.fates.stale_by == {"k3": 8}


def test_the_lag_of_a_member_is_its_own():
    """One old member of four is dropped; with another trainer's limit the group would have been lost."""
    young = group(50, [1, 0, 1, 0], version=3).trajectories
    old = replace(young[3], segments=(replace(young[3].segments[0], version=0),))

    def cell(bench: Bench) -> None:
        step = bench.run_store.read_head()[0].step
        if bench.sequence < step + 1 <= 3:
            bench.finish(*(group(10 * step + n, [1, 0], version=step) for n in (8, 9)))
        elif bench.sequence == 3 and step == 3:
            bench.finish(Group(50, "task-50", "v1", (*young[:3], old)), group(51, [1, 0], version=3))

    bench = Bench(sync(training={"steps": 4}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    assert [use.reason for use in record.groups[0].uses] == ["", "", "", "age"]
    assert ledger_of(record).stale_by == {"age": 2}


def test_the_time_in_flight_and_the_time_in_the_queue_are_separate_figures():
    """prime-rl#2957: begun at version 0, ended at 1, trained on from 3: one version in flight, two in the queue."""

    def cell(bench: Bench) -> None:
        step = bench.run_store.read_head()[0].step
        if bench.sequence > step:
            return
        numbers, parts = (2 * step, 2 * step + 1), ((0, step),) if step < 3 else ((0, 0), (3, 1))
        bench.finish(*(Group(n, f"task-{n}", "v1", tuple(
            trajectory(n, member, reward=float(member), segments=parts) for member in range(2)
        )) for n in numbers))  # fmt: skip

    bench = Bench(parameters(training={"steps": 4}, overlap={"max_lag_versions": 3}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    figures = [record.metrics[name] for name in (metrics.LAG_IN_FLIGHT_MEAN, metrics.LAG_IN_QUEUE_MEAN)]
    assert figures == [1.0, 2.0]
    assert record.metrics[metrics.LAG_STEPS_MEAN] == 2.5


class LateCell:
    """Starts what may start; every fourth group finishes two steps later than the others, with its old tokens."""

    def __init__(self) -> None:
        self.begun = 0
        self.due: dict[int, list[Group]] = {}

    def __call__(self, bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        if head.version is None:
            return
        admitted = head.spent + bench.params.rollout.groups_per_step + head.lead_groups
        for number in range(self.begun, admitted):
            late = 2 if number % 4 == 0 else 0
            made = group(number, [1, 0, 0, 1], version=head.step)
            took = [replace(one, started_unix=one.started_unix - 15.0 * late) for one in made.trajectories]
            self.due.setdefault(head.step + late, []).append(replace(made, trajectories=tuple(took)))
        self.begun = max(self.begun, admitted)
        finished = [one for when in sorted(self.due) if when <= head.step for one in self.due.pop(when)]
        if finished:
            bench.finish(*finished)


def test_slow_tasks_that_arrive_late_are_trained_on():
    """marin#8936: groups of slow tasks finish two steps after the others, and none of them is lost."""
    overlap = {"lead_groups": 6, "max_lag_versions": 4}
    bench = Bench(parameters(training={"steps": 12}, admission=LIMITS, overlap=overlap), LateCell())
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    records = bench.run_store.steps()
    used = [use.group for record in records for use in record.groups]
    assert [give_up for record in records for give_up in record.give_ups] == []
    assert set(range(0, 16, 4)) <= set(used)
    bias = find_bias(records)
    assert bias is not None
    assert bias.warnings == []


def test_slow_tasks_that_are_starved_are_said():
    """The same with a limit that the late ones pass: they are replaced, the run goes on, and the report says so."""
    overlap = {"lead_groups": 2, "max_lag_versions": 1}
    bench = Bench(parameters(training={"steps": 40}, admission=LIMITS, overlap=overlap), LateCell())
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    records = bench.run_store.steps()
    gone = {give_up.group for record in records for give_up in record.give_ups}
    assert len(gone) >= 10
    assert {number % 4 for number in gone} == {0}
    bias = find_bias(records)
    assert bias is not None
    assert bias.left_out == {"age": 4 * len(gone)}
    environment = "trained episodes of pointer_chase/v1 have fewer seconds than generated ones"
    assert any(warning.startswith(environment) for warning in bias.warnings), bias.warnings


def test_the_eager_cell_is_never_bitten():
    bench = Bench(sync(), eager_cell)
    bench.loop().run()
    for record in bench.run_store.steps():
        assert record.metrics[metrics.ADMISSION_DROPPED_SHARE] == 0
        assert record.metrics[metrics.ADMISSION_WEIGHT_MEAN] == 1
