"""The curation study's rows: the first time that an arm reached a success, and ratios within a seed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.curation_study import Choice, first_version, full_distribution, options, parameters
from benchmarks.curation_table import reached, smoothed, summarise, table
from environments.pointer_chase import PointerChase

FAMILY = PointerChase()
CHOICE = Choice(10, "levels", 3e-4, 16, 4, 16, 4, 512, 2)


def arm(name: str, successes: list[float], *, seed: int = 0, tokens: int = 100, zero: float = 0.4) -> dict[str, Any]:
    held_out = [{"step": 2 * at, "success": s, "tokens": 2 * at * tokens} for at, s in enumerate(successes)]
    return {"arm": name, "seed": seed, "held_out": held_out, "zero_variance_share": zero, "curve": []}


def test_success_is_the_mean_of_the_last_evaluations():
    assert [p["success"] for p in smoothed(arm("fixed", [0.0, 0.6, 0.9, 0.9]))] == pytest.approx([0.0, 0.3, 0.5, 0.8])


def test_a_target_is_reached_between_two_evaluations_or_never():
    found = arm("fixed", [0.4, 0.4, 0.4, 1.0, 1.0, 1.0])
    assert reached(found, 0.3) == {"step": 0, "success": 0.4, "tokens": 0}
    point = reached(found, 0.5)
    assert point is not None
    assert (point["step"], point["tokens"]) == (pytest.approx(5.0), pytest.approx(500.0))
    assert reached(found, 1.01) is None


def test_arms_are_compared_within_a_seed():
    fixed, curated = arm("fixed", [0.2] * 3 + [0.8] * 6), arm("curated", [0.2] + [0.8] * 8, tokens=120, zero=0.2)
    rows = {row["target"]: row for row in summarise([fixed, curated, arm("fixed", [0.1], seed=1)])}
    assert {row["seed"] for row in rows.values()} == {0}
    last = rows["fixed's last"]
    assert last["success"] == pytest.approx(0.8)
    assert (last["fixed_steps"], last["curated_steps"]) == (pytest.approx(10.0), pytest.approx(6.0))
    assert last["steps_ratio"] == pytest.approx(0.6)
    assert last["tokens_ratio"] == pytest.approx(0.72)
    assert last["zero_variance_ratio"] == pytest.approx(0.5)
    assert rows["0.9"]["steps_ratio"] is None
    assert "| 0 | 0.9 |" in table([*rows.values()])


def test_both_arms_begin_with_the_full_distribution_and_share_what_is_held_out():
    found, other = first_version(FAMILY, 0, CHOICE), first_version(FAMILY, 1, CHOICE)
    assert {FAMILY.level_of(task) for task in found.train} == set(range(16))
    assert len(found.held_out) == 256
    assert found.held_out == other.held_out
    assert found.train != other.train
    assert not {t.id for t in found.train} & {t.id for t in found.held_out}
    assert len(full_distribution(FAMILY, "generator", 3, 20)) == 20
    assert parameters("fixed", 0, CHOICE).environment.follow_task_set is False
    assert parameters("curated", 0, CHOICE).environment.follow_task_set is True
    assert options(CHOICE).rules.weights["useful"] == 0.8
