"""Where a run's wall clock went: parts that add up, idle seconds by cause, and what they cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.params import RunParameters
from driftline.records import Span
from driftline.tracking import attribution, metrics
from driftline.tracking.attribution import Prices, attribute_run, prices_of, rollout_idle, step_parts, train_idle
from driftline.tracking.intervals import usage
from tests.support.tracking_records import step_record

RECORD = step_record(
    1, previous_commit=100, batch_ready=106, train=(107, 109), committed=110, parts={"decode": 4.0, "tool": 2.0}
)


def told(lane: str, start: float, end: float, cause: str = "", cell: str = "c0") -> Span:
    return Span(lane, cause, start, end, 0, {"cell": cell})


def positive(parts: dict[str, float]) -> dict[str, float]:
    return {cause: value for cause, value in parts.items() if value}


def test_the_parts_of_a_step_by_hand() -> None:
    parts = step_parts(RECORD)
    assert positive(parts) == {"decode": 4, "tool": 2, "trainer": 1, "train": 2, "weights": 1}
    assert positive(train_idle(RECORD)) == {"decode": 4, "tool": 2, "trainer": 1, "weights": 1}


def test_a_wait_without_causes_on_record_is_queueing() -> None:
    bare = step_record(1, previous_commit=100, batch_ready=106, train=(106, 109), committed=110)
    assert positive(step_parts(bare)) == {"queue": 6, "train": 3, "weights": 1}


def test_the_idle_seconds_of_a_cell_by_hand() -> None:
    spans = [
        told("rollout", 90, 103),
        told("waiting/rollout", 102, 105, "trainer"),  # works until 103
        told("waiting/rollout", 105, 106, "apply"),
        told("waiting/rollout", 106, 106.5, "claim"),
        told("waiting/rollout", 107, 107.5, "a new cause"),
        told("rollout", 108, 120),
        told("training", 100, 110),
    ]
    assert rollout_idle(spans, (100, 110)) == {"apply": 1, "claim": 0.5, "trainer": 2, "other": 1.5}


def test_of_several_cells_it_is_the_mean() -> None:
    spans = [told("rollout", 100, 110), told("waiting/rollout", 100, 106, "trainer", "c1")]
    assert rollout_idle(spans, (100, 110)) == {"apply": 0, "claim": 0, "trainer": 3, "other": 2}
    assert rollout_idle([told("training", 100, 110)], (100, 110)) is None


def test_costs_by_hand() -> None:
    spans = [told("rollout", 100, 104)]  # idle for 6 s
    prices = Prices(rollout_per_gpu_hour=3.0, train_per_gpu_hour=1.5, rollout_gpus=4, train_gpus=2)
    found = attribute_run([RECORD], spans, prices)
    assert found.rollout_idle_cost == pytest.approx(6 / 3600 * 3 * 4)
    assert found.train_idle_cost == pytest.approx(8 / 3600 * 1.5 * 2)
    free = attribute_run([RECORD], spans, Prices())
    assert (free.rollout_idle_cost, free.train_idle_cost) == (None, None)


def test_the_prices_are_those_of_the_parameters() -> None:
    params = RunParameters.model_validate(
        {
            "rollout": {"cells": 3},
            "engine": {"tensor_parallel_size": 2},
            "training": {"ranks": 4},
            "tracking": {"rollout_gpu_hour_price": 2.0, "train_gpu_hour_price": 3.0},
        }
    )
    assert prices_of(params.model_dump(mode="json")) == Prices(2.0, 3.0, 6, 4)
    assert prices_of({}) == Prices(), "parameters of before there were prices"


def test_the_metrics_of_a_step_are_in_the_table() -> None:
    spans = [told("rollout", 100, 104), told("waiting/rollout", 104, 110, "trainer")]
    found = attribution.step_metrics([RECORD], spans, Prices(3600.0, 0.0))[1]
    metrics.check(found)
    assert positive(found) == {
        "idle/rollout_trainer_seconds": 6,
        "idle/train_decode_seconds": 4,
        "idle/train_tool_seconds": 2,
        "idle/train_trainer_seconds": 1,
        "idle/train_weights_seconds": 1,
        "idle/rollout_cost": 6,
    }
    assert metrics.IDLE_COST_TRAIN not in found


MOMENT = st.floats(0, 200)
CAUSE = st.sampled_from(["trainer", "apply", "claim", "unheard of"])
SPAN = st.builds(
    lambda lane, start, end, cause, cell: told(lane, start, end, cause, cell),
    st.sampled_from(["rollout", "waiting/rollout"]),
    MOMENT,
    MOMENT,
    CAUSE,
    st.sampled_from(["c0", "c1"]),
)


@given(spans=st.lists(SPAN, min_size=1, max_size=20), start=MOMENT, length=st.floats(0, 100))
def test_idle_and_busy_seconds_add_up_to_the_wall_clock(spans: list[Span], start: float, length: float) -> None:
    window = (start, start + length)
    idle = rollout_idle(spans, window)
    assert idle is not None
    assert min(idle.values()) >= 0
    cells = {span.labels["cell"] for span in spans}
    busy = [
        usage(
            [(s.start_unix, s.end_unix) for s in spans if s.lane == "rollout" and s.labels["cell"] == cell], *window
        ).busy_s
        for cell in cells
    ]
    assert math.fsum(idle.values()) + math.fsum(busy) / len(cells) == pytest.approx(length, abs=1e-6)


PARTS = st.dictionaries(st.sampled_from(metrics.CAUSES), st.floats(0, 50))


@given(parts=PARTS, moments=st.tuples(MOMENT, MOMENT, MOMENT, MOMENT, MOMENT), in_order=st.booleans())
def test_the_parts_of_a_step_add_up_to_its_wall_clock(
    parts: dict[str, float], moments: tuple[float, ...], in_order: bool
) -> None:
    """In order or not: clocks are set back now and then."""
    start, ready, begin, end, committed = sorted(moments) if in_order else moments
    record = step_record(
        1, previous_commit=start, batch_ready=ready, train=(begin, end), committed=committed, parts=parts
    )
    found = step_parts(record)
    assert min(found.values()) >= 0
    assert math.fsum(found.values()) == pytest.approx(max(0.0, committed - start), rel=0.02, abs=1e-6)
    if in_order:
        assert found["train"] == pytest.approx(end - begin, abs=1e-6)
