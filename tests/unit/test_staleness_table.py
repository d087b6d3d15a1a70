"""The staleness study's rows: means over seeds, and what is relative against the same seed's synchronous arm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.staleness_study import arms, steering_share
from benchmarks.staleness_table import COLUMNS, summarise, table
from driftline.records import StepRecord, StepTimes
from driftline.tracking import metrics
from tests.support.records import step_record


def result(arm: str, seed: int, success: float, step_s: float) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("effective_lead_batches", "lead_batches_mean", "k3_nats", "ess_fraction", "dropped_share", "reward_last"),
        0.5,
    )
    more = {"admission_s": 0.1, "admission_forward_s": 0.2, "steps": 10, "wall_clock_s": 10 * step_s}
    return {"arm": arm, "seed": seed, "success": success, "step_s": step_s, **figures, **more}


def test_an_arm_is_compared_with_the_synchronous_one_of_its_seed():
    results = [
        result("none-0", 0, 0.8, 4.0),
        result("none-0", 1, 0.6, 5.0),
        result("admission-4", 0, 0.7, 2.0),
        result("admission-4", 1, 0.7, 5.0),
        result("admission-4", 2, 0.1, 1.0),
    ]
    base, admission = summarise(results)
    assert (base["success_difference"], base["step_ratio"], base["wall_clock_ratio"]) == (0.0, 1.0, 1.0)
    assert admission["success_by_seed"] == [0.7, 0.7, 0.1]
    assert admission["success"] == pytest.approx(0.5)
    assert admission["success_difference"] == pytest.approx(0.0), "of the seeds that both have"
    assert admission["step_ratio"] == pytest.approx(0.75)
    assert admission["wall_clock_s"] == pytest.approx(80 / 3)


def test_results_of_before_a_figure_was_measured_stand_beside_those_with_it():
    with_it = result("controller", 1, 0.7, 2.0) | {"steering_s": 0.05, "steering_share": 0.02}
    (row,) = summarise([result("controller", 0, 0.7, 2.0), with_it])
    assert (row["steering_s"], row["steering_share"]) == (0.05, 0.02)
    (row,) = summarise([result("controller", 0, 0.7, 2.0)])
    assert row["steering_share"] is None


def test_the_share_of_steering_is_of_the_whole_wall_clock():
    def record(step: int, seconds: float, steering_s: float) -> StepRecord:
        times = StepTimes(100.0, 0.0, 0.0, 0.0, 0.0, 100.0 + seconds)
        return replace(step_record(step, None), times=times, metrics={metrics.STEERING_SECONDS: steering_s})

    assert steering_share([record(1, 2.0, 0.1), record(2, 8.0, 0.3)]) == pytest.approx(0.04)


def test_without_a_synchronous_arm_nothing_is_relative():
    (row,) = summarise([result("controller", 0, 0.7, 2.0)])
    assert row["success_difference"] is None
    cells = table([row]).splitlines()[-1].strip("| ").split(" | ")
    assert cells[:4] == ["controller", "10.000", "0.700", "-"]


def test_the_table_has_what_the_study_is_about():
    wanted = {"success", "wall_clock_s", "effective_lead_batches", "k3_nats", "ess_fraction", "dropped_share"}
    assert wanted <= {key for _, key in COLUMNS}


def test_every_lead_has_its_steps_and_every_way_of_correcting():
    found = {arm.name: arm for arm in arms()}
    ways = {f"{way}-{lead}" for way in ("none", "truncated", "admission") for lead in (1, 4, 16)}
    assert set(found) == {"none-0", "controller"} | ways
    assert all(arm.steps >= 8 * arm.lead_batches for arm in found.values())
