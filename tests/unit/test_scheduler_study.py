"""The scheduler study's figures: what is trained on against what is generated, and seeds in pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.scheduler_study import ARMS, figures_of, parameters, summarise, table
from driftline.records import MemberUse
from driftline.tracking import metrics
from tests.support.tracking_records import step_record, use


def _result(arm: str, seed: int, **changed: Any) -> dict[str, Any]:
    return {
        "arm": arm, "seed": seed, "success": 0.9, "wall_clock_s": 20.0, "length_bias": 0.01, "lag_mean": 0.0,
        "k3_nats": 0.001,
    } | changed  # fmt: skip


def test_a_row_is_a_seed_with_both_arms() -> None:
    rows = summarise(
        [
            _result("scheduled", 1, success=0.8, wall_clock_s=10.0, length_bias=-0.02, lag_mean=1.0, k3_nats=0.002),
            _result("barrier", 1),
            _result("barrier", 2),
        ]
    )
    assert rows == [
        {
            "seed": 1, "barrier_success": 0.9, "scheduled_success": 0.8, "wall_clock_ratio": pytest.approx(0.5),
            "length_bias": -0.02, "lag_mean": 1.0, "k3_nats": 0.002,
        }
    ]  # fmt: skip
    assert "0.5" in table(rows)
    assert "seed" in table([])


def test_the_arms_differ_in_how_episodes_are_scheduled_alone() -> None:
    barrier, scheduled = (json.loads(parameters(arm, 3, 40).model_dump_json()) for arm in ARMS)
    changed = {
        f"{section}.{name}"
        for section, values in barrier.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if scheduled[section][name] != value
    }
    assert (barrier["seed"], barrier["training"]["steps"]) == (3, 40)
    assert changed == {
        "overlap.lead_groups", "scheduling.order", "rollout.concurrency", "rollout.surplus_members"
    }  # fmt: skip


def _step(step: int, *members: tuple[int, float]) -> Any:
    """A step over one group, whose members have so many tokens and weights."""
    uses = tuple(
        MemberUse(n, "c0", "keep" if weight else "drop", "" if weight else "age", weight, tokens, 0, 1.0, (), turns=1)
        for n, (tokens, weight) in enumerate(members)
    )
    values = {metrics.LAG_STEPS_MEAN: float(step), metrics.K3: step / 10, metrics.REWARD_MEAN: step / 100}
    record = step_record(
        step, previous_commit=10.0 * step, batch_ready=10.0 * step + 2, train=(10.0 * step + 2, 10.0 * step + 5),
        committed=10.0 * step + 10, metrics=values,
    )  # fmt: skip
    return replace(record, groups=(replace(use(step), uses=uses, environment="e/v1"),))


def test_an_arms_figures_are_of_all_its_steps_and_its_last_rewards() -> None:
    records = [_step(step, (30, 1.0), (60, 1.0), (90, 0.0)) for step in range(1, 9)]
    found = figures_of("scheduled", 2, records, 0.75)
    assert (found["arm"], found["seed"], found["success"]) == ("scheduled", 2, 0.75)
    assert found["wall_clock_s"] == 80.0
    assert found["length_bias"] == pytest.approx(45 / 60 - 1)
    assert (found["lag_mean"], found["k3_nats"]) == (pytest.approx(4.5), pytest.approx(0.45))
    assert found["reward_last"] == pytest.approx(0.06)
