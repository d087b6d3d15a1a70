"""A refresh during a run: which version the next groups come from, and what is logged of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftline.environment import Task
from driftline.records import GiveUp, Head, StepRecord
from driftline.store import keys, tasksets
from driftline.store.tasksets import TaskNote
from driftline.tracking import metrics
from driftline.training.task_sets import TaskSetFollower, first_unadmitted, taken_up
from tests.support.tracking_records import step_record, use
from tests.support.trainer_bench import Bench, eager_cell, stopped_after, sync
from tests.support.training import group, parameters

NAME = "pointer-chase"
HEAD = Head(1, 0, None, None, 0, (), 4, ((0, "v1"),))


def task(number: int) -> Task:
    return Task(f"task-{number}", "pointer_chase/v1", {"n": number})


def publish(bench: Bench, *numbers: int, parent: str | None = None, held_out: bool = False) -> str:
    tasks = [task(n) for n in numbers]
    notes = {one.id: TaskNote("useful" if n % 2 else "too_hard") for n, one in zip(numbers, tasks, strict=True)}
    weights = dict.fromkeys({note.pool for note in notes.values()}, 1.0)
    kept = [task(1000)] if held_out else None
    return tasksets.publish(bench.store, NAME, tasks, held_out=kept, notes=notes, weights=weights, parent=parent)


def began_with(bench: Bench, version: str) -> None:
    head, etag = bench.run_store.read_head()
    bench.run_store.swap_head(replace(head, task_sets=((0, version),)), etag)


def test_a_new_version_begins_above_every_admitted_group():
    bench = Bench(parameters(overlap={"lead_groups": 2}), eager_cell)
    first = publish(bench, *range(64), held_out=True)
    began_with(bench, first)
    stopped_after(bench, 1)
    head, _ = bench.run_store.read_head()
    admitted = head.spent + 2 + head.lead_groups
    second = publish(bench, *range(64, 128), parent=first)
    bench.loop().run()
    after, _ = bench.run_store.read_head()
    assert after.task_sets == ((0, first), (admitted, second))


def test_without_a_lead_the_very_next_batch_is_of_the_new_version():
    bench = Bench(sync(), eager_cell)
    first = publish(bench, *range(64), held_out=True)
    began_with(bench, first)
    second = publish(bench, *range(64, 128), parent=first)
    bench.loop().run()
    assert bench.run_store.read_head()[0].task_sets == ((0, first), (2, second))


@pytest.mark.parametrize("why", ["another line", "damaged", "not followed"])
def test_what_is_not_made_from_the_version_in_use_or_cannot_be_read_is_not_taken_up(why: str):
    sections: dict[str, Any] = {"environment": {"follow_task_set": False}} if why == "not followed" else {}
    bench = Bench(sync(**sections), eager_cell)
    first = publish(bench, *range(64), held_out=True)
    began_with(bench, first)
    second = publish(bench, *range(64, 128), parent=None if why == "another line" else first)
    if why == "damaged":
        bench.store.put(f"{keys.task_set_prefix(NAME, second)}tasks.parquet", b"PAR1")
    bench.loop().run()
    assert bench.run_store.read_head()[0].task_sets == ((0, first),)
    assert bench.run_store.read_head()[0].state == "finished"


def test_a_version_that_comes_of_it_by_way_of_others_is_taken_up():
    bench = Bench(sync(), eager_cell)
    first = publish(bench, *range(64), held_out=True)
    began_with(bench, first)
    middle = publish(bench, *range(64, 128), parent=first)
    last = publish(bench, *range(128, 190), parent=middle)
    bench.loop().run()
    assert bench.run_store.read_head()[0].task_sets == ((0, first), (2, last))


def test_the_head_of_a_task_set_is_read_once_a_step_and_its_tasks_once():
    bench = Bench(sync(), eager_cell)
    first = publish(bench, *range(64), held_out=True)
    began_with(bench, first)
    publish(bench, *range(64, 128), parent=first)
    follower = TaskSetFollower(bench.store, bench.params, [], bench.run_store.read_head()[0])
    head = replace(bench.run_store.read_head()[0], spent=2)
    taken = replace(head, task_sets=follower.next(head))
    before = bench.store.requests.total()
    assert follower.next(taken) == taken.task_sets
    assert bench.store.requests.total() == before + 1


def test_success_is_logged_by_pool_and_version():
    bench = Bench(sync(training={"steps": 2}), eager_cell)
    first = publish(bench, *range(64), held_out=True)
    began_with(bench, first)

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        begun, admitted = len(bench.run_store.new_groups()), head.spent + 2
        for n in range(begun, admitted):
            found = group(
                n, [1, 1, 0, 1] if n % 2 else [0, 0, 0, 1], version=head.version.number if head.version else 0
            )
            version = head.task_sets[-1][1]
            trajectories = tuple(replace(one, task_set=version) for one in found.trajectories)
            bench.finish(replace(found, task_set=version, trajectories=trajectories))

    bench.cell = cell
    bench.loop().run()
    for record in bench.run_store.steps():
        assert record.metrics[metrics.POOL_SUCCESS["useful"]] == 0.75
        assert record.metrics[metrics.POOL_SUCCESS["too_hard"]] == 0.25
        assert record.metrics[metrics.POOL_SHARE["useful"]] == 0.5
        assert record.metrics[metrics.TASK_SET_SHARE] == 1.0
        assert record.metrics[metrics.TASK_SET_SUCCESS] == 0.5
        assert metrics.POOL_SUCCESS["too_easy"] not in record.metrics
        assert metrics.TASK_SET_SUCCESS_OLDER not in record.metrics


def record(groups: int, give_ups: int, lead: int) -> StepRecord:
    return replace(
        step_record(1, previous_commit=0.0, batch_ready=1.0, train=(1.0, 2.0), committed=3.0),
        groups=(use(0),) * groups,
        give_ups=tuple(GiveUp(n, "stale", 0) for n in range(give_ups)),
        lead_groups=lead,
    )


def test_a_lead_that_was_cut_and_groups_given_up_count_as_admitted():
    deep, cut = record(2, 1, 32), record(2, 0, 2)
    head = replace(HEAD, spent=5, lead_groups=2)
    assert first_unadmitted([deep, cut], head, 2) == 1 + 2 + 32
    assert first_unadmitted([], HEAD, 2) == 6


def test_a_version_that_no_group_was_admitted_from_is_replaced():
    assert taken_up(((0, "a"), (35, "b")), 35, "c") == ((0, "a"), (35, "c"))
    assert taken_up(((0, "a"),), 35, "c") == ((0, "a"), (35, "c"))
