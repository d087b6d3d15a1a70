"""What the benchmarks share: results that are kept and gone on with, and their tables."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import markdown_table
from benchmarks.state import State, open_state

CHOICE = {"choice": {"steps": 40, "rate": 3e-4}}


def opened(path: Path, chosen: dict[str, Any] = CHOICE) -> State:
    return open_state(argparse.ArgumentParser(), path, chosen, "threads", "results")


async def test_each_result_is_in_the_file_before_the_next_arm_begins(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    seen: list[tuple[str, int, list[str]]] = []

    async def run(arm: str, seed: int) -> dict[str, Any]:
        there = json.loads(path.read_text())["results"] if path.exists() else {}
        seen.append((arm, seed, [*there]))
        if len(seen) == 4:
            raise TimeoutError
        return {"arm": arm, "seed": seed, "curve": [1.0]}

    state = opened(path)
    missing = state.missing(("fixed", "curated"), (0, 2))
    assert missing == [("fixed", 0), ("curated", 0), ("fixed", 2), ("curated", 2)], "a seed's arms side by side"
    with pytest.raises(TimeoutError):
        await state.add(missing, run)
    assert [len(there) for _, _, there in seen] == [0, 1, 2, 3]

    again = opened(path)
    assert again.missing(("fixed", "curated"), (0, 2)) == [("curated", 2)]
    assert again.results["fixed/2"] == {"arm": "fixed", "seed": 2, "curve": [1.0]}
    assert [*json.loads(path.read_text())] == ["choice", "threads", "results"]


def test_results_of_another_choice_are_refused_with_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(tmp_path / "study.json").save()
    with pytest.raises(SystemExit) as ended:
        opened(tmp_path / "study.json", {"choice": {"steps": 30, "rate": 3e-4}})
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "'steps': 40" in said
    assert "'steps': 30" in said


@pytest.mark.parametrize(
    ("name", "chosen", "kept"),
    [
        ("staleness-3e-4", {"choice": {"learning_rate": 3e-4, "budget_k3": 0.01, "step_s": 2.2}}, "results"),
        ("staleness-5e-4", {"choice": {"learning_rate": 5e-4, "budget_k3": 0.02, "step_s": 2.2}}, "results"),
        ("scheduler-study", {"steps": 40}, "results"),
        ("rollout-ladder", {"lead_batches": 3, "slots": 512}, "traces"),
    ],
)
def test_the_committed_results_are_gone_on_with(name: str, chosen: dict[str, Any], kept: str) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "results" / f"{name}.json"
    assert open_state(argparse.ArgumentParser(), path, chosen, kept).document[kept]


def test_a_table_shows_a_column_for_each_key() -> None:
    columns = (("arm", "arm"), ("k3 nats", "k3"))
    rows = [{"arm": "fixed", "k3": 0.12345, "seed": 0}, {"arm": "curated", "k3": None, "seed": 0}]
    assert markdown_table(columns, rows).splitlines() == [
        "| arm | k3 nats |", "| --- | --- |", "| fixed | 0.123 |", "| curated | - |"
    ]  # fmt: skip
