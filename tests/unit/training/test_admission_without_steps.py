"""Where admission lets no step come about: the cause is named, and only then."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from driftline.errors import LimitExceeded
from driftline.tracking import metrics
from driftline.tracking.sink import NullSink
from tests.support.admission import (
    CURRENT,
    FAR,
    LIMITS,
    bench_of,
    long_and_far,
    the_step,
    with_logprobs,
)
from tests.support.trainer_bench import Bench, sync
from tests.support.training import FakeGroup, group


def test_a_run_all_of_whose_groups_are_too_far_says_so():
    bench = bench_of(
        lambda bench: bench.finish(with_logprobs(group(bench.sequence, [1, 0]), m0=FAR, m1=FAR)),
        limits={"batch_deadline_s": 20.0},
    )
    with pytest.raises(LimitExceeded, match=r"no full batch in 20 s.*given up.*divergence: 0 of 2 members.*see the"):
        bench.loop().run()
    assert bench.events[1:] == [], "a few tokens name no cause"


class Logged(NullSink):
    """Remembers what is logged."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.points.append((step, dict(values)))


def test_a_run_all_of_whose_groups_are_too_far_names_the_cause_before_it_starves():
    """Nothing is committed, so no record says it: the error, the event and the metric do."""
    told: list[float] = []

    def cell(bench: Bench) -> None:
        bench.finish(long_and_far(bench.sequence))
        if len(bench.events) > 1 and not told:
            told.append(bench.now)

    bench = bench_of(cell, limits={"batch_deadline_s": 60.0})
    bench.sink = sink = Logged()
    with pytest.raises(LimitExceeded, match=r"no full batch in 60 s.*given up.*: engine mismatch: k3 is 2.86e"):
        bench.loop().run()
    assert told[0] < 1010.0, "as soon as a batch of groups is given up"
    (event,) = bench.events[1:]
    assert (event["event"], event["type"]) == ("warning", "Diagnosis")
    assert event["message"].startswith(
        "step 1: engine mismatch: k3 is 2.86e+01 nats a token at lag 0 over 240 tokens"
    )
    assert {(step, *values.items()) for step, values in sink.points} == {(1, (metrics.CAUSE, 1.0))}


def test_a_far_group_now_and_then_names_no_cause():
    """One in each step, as many as a batch in all: they are admission's, and nothing keeps the run from its steps."""

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        if head.version is not None and bench.sequence <= head.step:
            first, version = 3 * head.step, head.version.number
            near = (group(first + n, [1, 0], version=version) for n in (1, 2))
            bench.finish(long_and_far(first, version=version), *near)

    bench = Bench(sync(training={"steps": 3}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    assert record.step == 3
    assert [len(found.give_ups) for found in bench.run_store.steps()] == [1, 1, 1]
    assert [event for event in bench.events if event["event"] == "warning"] == []


def test_a_cause_named_while_nothing_was_trained_on_is_over_with_the_next_healthy_step():
    def cell(bench: Bench) -> None:
        if bench.sequence < 4:
            bench.finish(long_and_far(bench.sequence))
        else:
            bench.finish(group(bench.sequence, [1, 0]))

    bench = bench_of(cell)
    the_step(bench)
    said = [event["message"].split(":")[:2] for event in bench.events if event["event"] == "warning"]
    assert said == [["step 1", " engine mismatch"], ["step 1", " healthy"]]
