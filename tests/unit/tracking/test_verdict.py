"""What bounds a run, and when that is news."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.params import RunParameters
from driftline.records import StepRecord
from driftline.tracking import metrics
from driftline.tracking.causes import BOUNDS, TRAIN_IDLE
from driftline.tracking.verdict import (
    _CHANGES,  # pyright: ignore[reportPrivateUsage]
    PARTS,
    StepWatch,
    changes,
    judge,
)
from tests.support.tracking_records import step_record

PARAMETERS: dict[str, Any] = RunParameters().model_dump(mode="json")  # pyright: ignore[reportCallIssue]


def step(number: int, *, train: float = 1.0, weights: float = 0.5, claim: float = 0.0, **parts: float) -> StepRecord:
    """A step of so many seconds of each part."""
    start, wait = 1000.0 * number, sum(parts.values())
    record = step_record(
        number,
        previous_commit=start,
        batch_ready=start + wait,
        train=(start + wait, start + wait + train),
        committed=start + wait + train + weights,
        parts=parts,
        metrics={metrics.STORE_CLAIM_SECONDS: claim},
    )
    return dataclasses.replace(record, lead_groups=4)


def watch(records: list[StepRecord] | None = None, share: float = 0.5) -> StepWatch:
    return StepWatch(records or [], PARAMETERS, regression_share=share)


@pytest.mark.parametrize(
    ("parts", "bound", "part"),
    [
        ({"decode": 3.0, "tool": 1.0}, "engine", "decode"),
        ({"queue": 3.0}, "engine", "queue"),
        ({"queue": 3.0, "claim": 2.5}, "store", "claim"),
        ({"decode": 1.0, "tool": 3.0}, "tools", "tool"),
        ({"decode": 1.0, "reset": 3.0}, "tools", "reset"),
        ({"straggler": 4.0}, "stragglers", "straggler"),
        ({"decode": 1.0, "train": 5.0}, "trainer", "train"),
        ({"admission": 4.0}, "trainer", "admission"),
        ({"publish": 1.0, "apply": 2.0}, "store", "apply"),
        ({"weights": 3.0}, "store", "weights"),
    ],
)
def test_what_takes_most_of_the_step_bounds_it(parts: dict[str, float], bound: str, part: str) -> None:
    found = judge([step(1, **parts)], PARAMETERS)
    assert found is not None
    assert (found.bound, found.part) == (bound, part)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.changes


def test_the_figures_behind_it_by_hand() -> None:
    found = judge([step(1, decode=4.0, tool=0.5), step(2, decode=2.0, tool=0.5)], PARAMETERS)
    assert found is not None
    assert found.shares == pytest.approx(
        {"engine": 6 / 10, "tools": 1 / 10, "stragglers": 0, "trainer": 2 / 10, "store": 1 / 10}
    )
    assert found.seconds["decode"] == 3
    assert (
        found.why
        == "engine: 60% of a step of 5.00 s, most of it decode (3.00 s); then trainer 20%, tools 10%, store 10%"
    )


def test_steps_that_took_no_time_are_bound_by_nothing() -> None:
    assert judge([], PARAMETERS) is None
    assert judge([step(1, train=0.0, weights=0.0)], PARAMETERS) is None


def test_every_part_has_one_bound_and_something_that_changes_it() -> None:
    parts = [part for bound in PARTS.values() for part in bound]
    assert sorted(parts) == sorted({*TRAIN_IDLE, "train", "claim"})
    assert tuple(PARTS) == BOUNDS == tuple(metrics.BOUND_SHARE)
    for part in parts:
        for name, _ in _CHANGES[part]:
            section, field = name.split(".")
            assert field in PARAMETERS[section], f"{name} is no parameter"


def test_what_is_set_already_is_not_advised() -> None:
    predicted = RunParameters.model_validate({"scheduling": {"order": "predicted"}}).model_dump(mode="json")
    advised = changes("straggler", PARAMETERS, 4)
    assert advised[0] == "scheduling.order: predicted starts the longest first"
    assert changes("straggler", predicted, 4) == advised[1:]
    assert changes("straggler", predicted, 0)[0].startswith("overlap.lead_groups: 0 is synchronous")


def test_fewer_cells_than_one_are_not_advised_and_more_still_are() -> None:
    several = RunParameters.model_validate({"rollout": {"cells": 3}}).model_dump(mode="json")
    assert any(change.startswith("rollout.cells: fewer") for change in changes("train", several, 4))
    assert not any(change.startswith("rollout.cells") for change in changes("train", PARAMETERS, 4))
    assert any(change.startswith("rollout.cells: more") for change in changes("decode", PARAMETERS, 4))


def test_where_episodes_wait_for_a_process_more_of_them_are_advised() -> None:
    assert changes("reset", PARAMETERS, 4)[0].startswith("environment.workers: raise it")


def test_another_verdict_is_news_once() -> None:
    subject = watch()
    news = [subject.see(step(number, decode=4.0)) for number in range(1, 9)]
    assert news == [[]] * 8, "the first verdict is no change"
    assert subject.verdict is not None
    later = [found for number in range(9, 30) for found in subject.see(step(number, decode=4.0, train=9.0))]
    assert [(found.type, found.figures["before"], found.figures["bound"]) for found in later] == [
        ("Bottleneck", "engine", "trainer")
    ]
    assert later[0].message.startswith("the run is no longer bound by engine, but by trainer: ")
    assert "training.ranks: more GPUs a step" in later[0].message
    metrics.check(subject.values)
    assert subject.values[metrics.BOUND] == 3


def test_two_that_bound_it_alike_do_not_flap() -> None:
    """Each leads in turn for longer than the window, by less than the margin."""
    subject = watch()
    news = [
        found
        for number in range(1, 200)
        for found in subject.see(step(number, decode=3.0 + number // 10 % 2 * 0.5, tool=3.25))
    ]
    assert news == []


def test_a_slower_batch_is_news_once_and_again_after_it_was_well() -> None:
    subject = watch()
    waits = [2.0] * 10 + [4.0] * 8 + [2.0] * 12 + [4.0] * 8
    news = {number: subject.see(step(number, decode=wait)) for number, wait in enumerate(waits, start=1)}
    told = {number: found[0] for number, found in news.items() if found}
    assert list(told) == [12, 32], "as soon as two of three steps are slow"
    assert {found.type for found in told.values()} == {"TimeToBatchRegressed"}
    assert told[12].figures == {"recent_s": 4.0, "baseline_s": 2.0}
    assert "a batch takes 4.00 s (median of 3 steps), against 2.00 s before" in told[12].message


def test_what_is_about_the_threshold_does_not_flap() -> None:
    """Between half the threshold and all of it, what was said stands."""
    subject = watch()
    waits = [2.0] * 20 + [3.2, 2.8] * 6
    news = [found for n, wait in enumerate(waits, start=1) for found in subject.see(step(n, decode=wait))]
    assert [found.type for found in news] == ["TimeToBatchRegressed"]


@pytest.mark.parametrize("slower", [2.9, 3.1])
def test_the_threshold_is_the_parameter(slower: float) -> None:
    subject = watch(share=0.5)
    news = [
        found
        for number in range(1, 14)
        for found in subject.see(step(number, decode=2.0 if number <= 10 else slower))
    ]
    assert bool(news) == (slower > 3.0)


def test_a_wait_that_matters_to_nobody_is_no_news() -> None:
    subject = watch()
    news = [
        found
        for number in range(1, 14)
        for found in subject.see(step(number, train=9.0, decode=0.01 if number <= 10 else 0.1))
    ]
    assert news == []


@given(
    waits=st.lists(st.floats(0, 10), min_size=1, max_size=40),
    trains=st.lists(st.floats(0, 10), min_size=40, max_size=40),
    cut=st.integers(0, 40),
)
def test_a_restarted_trainer_says_what_the_first_would(waits: list[float], trains: list[float], cut: int) -> None:
    steps = [step(n, decode=wait, train=trains[n - 1]) for n, wait in enumerate(waits, start=1)]
    first = watch()
    told = [first.see(one) for one in steps]
    second = watch(steps[:cut])
    assert [second.see(one) for one in steps[cut:]] == told[cut:]
    assert second.verdict == first.verdict
