"""The scheduler study's figures: what is trained on against what is generated, and seeds in pairs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.scheduler_study import ARMS, parameters, summarise, table


def _result(arm: str, seed: int, **changed: Any) -> dict[str, Any]:
    return {
        "arm": arm, "seed": seed, "success": 0.9, "wall_clock_s": 20.0, "length_bias": 0.01, "lag_mean": 0.0,
        "k3_nats": 0.001,
    } | changed  # fmt: skip


def test_a_row_is_a_seed_with_both_arms() -> None:
    rows = summarise(
        [
            _result("scheduled", 1, success=0.8, wall_clock_s=10.0, length_bias=-0.02, lag_mean=1.0),
            _result("barrier", 1),
            _result("barrier", 2),
        ]
    )
    assert [row["seed"] for row in rows] == [1]
    assert rows[0]["barrier_success"] == 0.9
    assert rows[0]["scheduled_success"] == 0.8
    assert rows[0]["wall_clock_ratio"] == pytest.approx(0.5)
    assert rows[0]["length_bias"] == -0.02
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
    assert changed == {
        "overlap.lead_groups", "scheduling.order", "rollout.concurrency", "rollout.surplus_members"
    }  # fmt: skip
