"""The real loop and trainer on what a real vLLM engine samples: planted faults are named, and without one
divergence stays at its floor. One process runs `benchmarks.planted_faults`, once through each case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from driftline.measured import FLOOR_K3_NATS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AGREEMENT_NATS = 1e-4
CASES = ["healthy", "stuck-engine", "temperature", "lag-16", "retokenised", "null-update", "in-flight", "synchronous"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    results = tmp_path_factory.mktemp("faults") / "faults.json"
    command = [sys.executable, "-m", "benchmarks.planted_faults", "--runs", "1", "--first-seed", "100"]
    subprocess.run(
        [*command, "--json", str(results), "--faults", *CASES],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[2],
        timeout=800,
        check=True,
    )
    return {row["case"]: row for row in json.loads(results.read_text())["runs"]}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named_and_no_other(rows: dict[str, dict[str, Any]], case: str):
    assert rows[case]["named"], (rows[case]["verdicts"], rows[case]["why"])


def test_the_engine_that_was_not_updated_is_named(rows: dict[str, dict[str, Any]]):
    assert rows["stuck-engine"]["engine"] == "c1"


def test_identical_weights_give_a_ratio_of_one_with_the_temperature_on_both_sides(rows: dict[str, dict[str, Any]]):
    """trl#4159: temperature on one side only."""
    assert rows["synchronous"]["difference_max_nats"] <= AGREEMENT_NATS
    assert rows["synchronous"]["k3_max_nats"] < FLOOR_K3_NATS["float32"]


def test_a_learning_rate_of_nothing_keeps_divergence_at_its_floor_for_20_steps(rows: dict[str, dict[str, Any]]):
    """open-instruct#1473: divergence grows at learning rate 0. Versions come and go in flight meanwhile."""
    assert len(rows["null-update"]["verdicts"]) == 20
    assert rows["null-update"]["difference_max_nats"] <= AGREEMENT_NATS
    assert rows["null-update"]["k3_max_nats"] < FLOOR_K3_NATS["float32"]


def test_the_floor_is_not_that_of_every_token_of_lag_zero(rows: dict[str, dict[str, Any]]):
    """Tokens after an update in flight come from a KV cache of two versions, and differ by more than arithmetic."""
    found = rows["in-flight"]
    assert found["lag0_k3_max_nats"] > FLOOR_K3_NATS["float32"] > found["figures"]["floor_k3_nats"]
