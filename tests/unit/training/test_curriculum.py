"""Which tasks the next groups play, where they are sampled by what is learned from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftline.records import StepRecord, TaskSampling
from driftline.refresh.learnability import learnability
from driftline.rollout import assignment
from driftline.tracking import metrics
from driftline.training import curriculum
from tests.support.tracking_records import step_record, use
from tests.support.trainer_bench import Bench, eager_cell, stopped_after
from tests.support.training import parameters


def record(step: int, **success: float) -> StepRecord:
    uses = [replace(use(n), stratum=name, success_mean=mean) for n, (name, mean) in enumerate(success.items())]
    return step_record(step, previous_commit=0, batch_ready=1, train=(1, 2), committed=3, uses=uses)


def by_learnability(**sections: Any) -> Any:
    return parameters(environment={"task_sampling": "learnability"}, **sections)


def test_strata_that_are_solved_at_times_outweigh_the_others_and_what_was_not_seen_counts_as_unknown():
    found = curriculum.task_sampling([record(1, easy=1.0, edge=0.5, hard=0.0)], first=7, members=8)
    easy, edge, hard = learnability(17 / 18), learnability(0.5), learnability(1 / 18)
    assert found == TaskSampling(7, {"easy": easy, "edge": edge, "hard": hard}, edge)
    assert easy < hard < edge / 3


def test_what_is_learned_counts_by_the_token():
    short, long = (replace(use(n), stratum=name, success_mean=0.5) for n, name in enumerate(("short", "long")))
    uses = [
        replace(short, sampled_tokens=10 * short.valid_members),
        replace(long, sampled_tokens=40 * long.valid_members),
    ]
    seen = step_record(1, previous_commit=0, batch_ready=1, train=(1, 2), committed=3, uses=uses)
    weights = curriculum.task_sampling([seen], first=0, members=8).weights
    assert weights["short"] == pytest.approx(learnability(0.5) * 25 / 10, rel=1e-4)
    assert weights["long"] == pytest.approx(learnability(0.5) * 25 / 40, rel=1e-4)


def test_a_level_that_was_not_played_is_as_long_as_the_nearest_one_that_was():
    played = {"a/v1/level 1": (10.0, 100.0), "a/v1/level 4": (10.0, 700.0), "b/v1": (20.0, 800.0), "c/v1": (0.0, 0.0)}
    wanted = [*(f"a/v1/level {level}" for level in range(6)), "b/v1", "c/v1", "c/v1/level 2"]
    found = curriculum.relative_lengths(wanted, played)
    assert [found[name] for name in wanted] == pytest.approx([0.25, 0.25, 0.25, 1.75, 1.75, 1.75, 1.0, 1.0, 1.0])
    assert curriculum.relative_lengths(["a"], {}) == {"a": 1.0}


def test_what_was_seen_long_ago_counts_less():
    seen = [record(1, hard=0.0), *(record(step, edge=0.5) for step in range(2, 40))]
    soon, later, late = (
        curriculum.task_sampling(seen[:steps], first=0, members=8).weights["hard"] for steps in (1, 4, 12)
    )
    assert soon < later < late
    assert "hard" not in curriculum.task_sampling(seen, first=0, members=8).weights, (
        "beyond the last steps, nothing is known"
    )


def test_a_group_that_was_not_played_by_its_sampling_is_sampled_anew_and_the_oldest_are_dropped():
    old = tuple(TaskSampling(first, {}, 1.0) for first in (0, 8, 16))
    new = TaskSampling(16, {"a": 0.5}, 1.0)
    assert curriculum.taken_up(old, new) == (*old[:2], new)
    many = ()
    for first in range(0, 800, 8):
        many = curriculum.taken_up(many, TaskSampling(first, {}, 1.0))
    assert [one.first for one in many] == [*range(800 - 8 * curriculum.MOST_KEPT, 800, 8)]


def test_groups_sample_by_what_was_in_force_when_they_were_admitted():
    early, late = TaskSampling(8, {"a": 1.0}, 0.1), TaskSampling(24, {"b": 1.0}, 0.1)
    found = [assignment.sampling_of((early, late), group) for group in (0, 7, 8, 23, 24, 999)]
    assert found == [None, None, early, early, late, late]


def test_a_batch_of_two_strata_alike_is_of_two():
    uses = record(1, a=0.5, b=0.5).groups
    assert curriculum.effective_strata(uses) == pytest.approx(2.0)
    assert curriculum.effective_strata(uses[:1]) == 1.0
    assert curriculum.effective_strata(()) == 0.0


def test_a_run_writes_what_its_records_give_and_goes_on_with_it_after_a_restart():
    bench = Bench(by_learnability(overlap={"lead_groups": 2}), eager_cell)
    stopped_after(bench, 1)
    bench.loop().run()
    head, records = bench.run_store.read_head()[0], bench.run_store.steps()
    assert len(records) > 1
    assert [one.first for one in head.task_sampling] == [2 + 2 + record.step * 2 - 2 for record in records]
    assert head.task_sampling == tuple(
        curriculum.task_sampling(records[: at + 1], one.first, 4) for at, one in enumerate(head.task_sampling)
    )
    assert records[-1].metrics[metrics.EFFECTIVE_STRATA] == 1.0


def test_without_it_head_names_no_sampling():
    bench = Bench(parameters(), eager_cell)
    bench.loop().run()
    assert bench.run_store.read_head()[0].task_sampling == ()
