"""What a run's records amount to, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.records import EvaluationResult, Span, StepRecord
from driftline.tracking import metrics
from driftline.tracking.summary import (
    held_out_success,
    mean,
    quantile,
    record_spans,
    split_steps,
    step_metrics,
    summarize,
)
from tests.support.tracking_records import span, step_record, use


def two_steps() -> list[StepRecord]:
    first = step_record(
        1,
        previous_commit=100,
        batch_ready=106,
        train=(106, 108),
        committed=110,
        uses=[use(0, lag_mean=0, lag_max=0, tokens=30), use(1, weight=0.0, lag_mean=1, lag_max=2, tokens=10)],
        metrics={metrics.K3: 0.01, metrics.ESS_FRACTION: 0.9, metrics.REWARD_MEAN: 0.4},
        parts={"decode": 4.0, "queue": 2.0},
        failed=[7],
    )
    second = step_record(
        2,
        previous_commit=110,
        batch_ready=112,
        train=(112, 117),
        committed=118,
        uses=[use(2, lag_mean=1, lag_max=1, tokens=40)],
        metrics={metrics.K3: 0.03, metrics.ESS_FRACTION: 0.7, metrics.REWARD_MEAN: 0.6},
        parts={"decode": 2.0},
        failed=[8, 9],
    )
    return [first, second]


def spans() -> list[Span]:
    """Two cells work at the same time; the engine pauses twice."""
    return [
        span("rollout", 100, 105),
        span("rollout", 103, 107),
        span("rollout", 111, 114),
        span("apply", 110, 110.1, "pause"),
        span("apply", 117, 117.3, "pause"),
        span("apply", 109, 111, "fetch"),
    ]


def test_steps_are_split_by_hand() -> None:
    first, second = split_steps(two_steps(), spans())
    assert (first.wall_s, first.rollout_s, first.training_s) == (10, 7, 2)
    assert (first.overlap_efficiency, first.pipeline_overhead_s) == (pytest.approx(0.7), 3)
    assert (second.wall_s, second.rollout_s, second.training_s) == (8, 3, 5)
    assert (second.overlap_efficiency, second.pipeline_overhead_s) == (pytest.approx(0.625), 3)


def test_summary_by_hand() -> None:
    found = summarize(two_steps(), spans(), given_up=[9, 11])
    values = dataclasses.asdict(found)
    assert values.pop("time_to_batch_by_cause_s") == {"decode": 3.0, "queue": 1.0}
    assert values == pytest.approx(
        {
            "steps": 2,
            "wall_clock_s": 18,
            "time_to_batch_p50_s": 4,
            "time_to_batch_p95_s": 2 + 0.95 * 4,
            "overlap_efficiency": 0.6625,
            "overlap_efficiency_mean": 0.6625,
            "pipeline_overhead_p50_s": 3,
            "rollout_p50_s": 5,
            "training_p50_s": 3.5,
            "idle_share_rollout": 8 / 18,
            "idle_share_train": 11 / 18,
            "k3_nats": 0.02,
            "ess_fraction": 0.8,
            "dropped_share": None,
            "down_weighted_share": None,
            "lag_steps_mean": 50 / 80,
            "lag_steps_max": 2,
            "engine_pause_p50_s": 0.2,
            "engine_pause_max_s": 0.3,
            "groups_trained": 2,
            "groups_zero_variance": 1,
            "groups_failed": 4,
            "reward_first": 0.4,
            "reward_last": 0.6,
        }
    )


def test_what_was_not_measured_is_none() -> None:
    nothing = summarize([], [])
    assert nothing.steps == nothing.groups_trained == nothing.groups_failed == 0
    assert (nothing.wall_clock_s, nothing.k3_nats, nothing.lag_steps_max, nothing.overlap_efficiency) == (None,) * 4
    without_cells = summarize(two_steps(), [])
    assert (without_cells.overlap_efficiency, without_cells.idle_share_rollout) == (None, None)
    assert without_cells.engine_pause_max_s is None
    assert without_cells.idle_share_train == pytest.approx(11 / 18)


def test_a_metric_that_is_not_finite_is_left_out() -> None:
    first, second = two_steps()
    broken = dataclasses.replace(second, metrics={metrics.K3: float("nan")})
    assert summarize([first, broken], []).k3_nats == 0.01


def test_the_metrics_of_a_step() -> None:
    by_step = step_metrics(two_steps(), spans())
    metrics.check(by_step[1])
    assert by_step[2] == pytest.approx(
        {
            metrics.ROLLOUT_SECONDS: 3,
            metrics.OVERLAP_EFFICIENCY: 0.625,
            metrics.PIPELINE_OVERHEAD: 3,
            metrics.IDLE_SHARE_ROLLOUT: 0.625,
            metrics.IDLE_SECONDS_ROLLOUT: 5,
            metrics.IDLE_SHARE_TRAIN: 0.375,
            metrics.IDLE_SECONDS_TRAIN: 3,
        }
    )
    assert metrics.ROLLOUT_SECONDS not in step_metrics(two_steps(), [])[1]


def test_the_records_alone_give_the_trainers_lanes() -> None:
    found = [(each.lane, each.start_unix, each.end_unix, each.step) for each in record_spans(two_steps())]
    assert found == [
        ("training", 106, 108, 1),
        ("publish", 108, 108.1, 1),
        ("training", 112, 117, 2),
        ("publish", 117, 117.1, 2),
    ]


def test_held_out_success_is_that_of_the_version() -> None:
    found = [EvaluationResult(0, 256, 256, 0.4, 0.4, 0, 3.0), EvaluationResult(25, 256, 256, 0.9, 0.9, 0, 3.0)]
    assert [held_out_success(found, version) for version in (0, 25, 24, None)] == [0.4, 0.9, None, None]


def test_quantile_and_mean_by_hand() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([10, 20], 0.95) == pytest.approx(19.5)
    assert quantile([7], 0.95) == 7
    assert (quantile([], 0.5), mean([])) == (None, None)


TIMES = st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), max_size=15)


@given(rollout=TIMES, train=st.tuples(st.floats(0, 200), st.floats(0, 200)), length=st.floats(0.1, 100))
def test_shares_stay_within_bounds(
    rollout: list[tuple[float, float]], train: tuple[float, float], length: float
) -> None:
    """verl#6693: idle ratios above 1. Whatever the clocks say, shares are shares."""
    record = step_record(1, previous_commit=50, batch_ready=50, train=train, committed=50 + length)
    found = summarize([record], [span("rollout", *interval) for interval in rollout])
    for share in (found.overlap_efficiency, found.idle_share_rollout, found.idle_share_train):
        assert share is None or 0 <= share <= 1 + 1e-9
    assert found.pipeline_overhead_p50_s is None or found.pipeline_overhead_p50_s >= -1e-9
