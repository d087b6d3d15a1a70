"""`driftline replay` and `driftline gc`: what they print, write and return."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from driftline import cli, cli_reach, cli_runs, params
from driftline.accounts import Frontier
from driftline.records import FileEntry, GroupUse, PolicyVersion, StepRecord, StepTimes
from driftline.store import client, keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tests.support import records
from tests.support.records import RUN

Run = Callable[..., Result]
RESULT = {
    "run": RUN,
    "step": 3,
    "version_in": "000002-0001",
    "tolerance": 1e-5,
    "agrees": True,
    "figures": {"train/loss": {"record": 0.5, "replay": 0.5, "difference": 0.0, "allowed": 1e-5}},
}


@pytest.fixture
def store() -> MemoryStore:
    ticks = itertools.count(1000)
    return MemoryStore(clock=lambda: float(next(ticks)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> Iterator[Run]:
    monkeypatch.setenv("DRIFTLINE_WORK_DIR", str(tmp_path / "stack"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    params.settings.cache_clear()
    monkeypatch.setattr(cli_reach, "adopt_environment", lambda values: None)
    monkeypatch.setattr(client, "open_store", lambda settings: store)
    yield lambda *arguments: CliRunner().invoke(cli.app, arguments)
    params.settings.cache_clear()


@pytest.fixture
def runs(store: MemoryStore) -> RunStore:
    """A run of three steps, each with a checkpoint."""
    runs = RunStore(store, RUN)
    runs.create(records.description())
    etag = runs.create_head(records.head())
    previous = None
    for step in (1, 2, 3):
        key = runs.append_groups("c0", step - 1, [records.group(step)])
        use = GroupUse(step, key, 1, "t", "v1", 1.0, 2, 2, 0.5, 0.5, 0.5, 0.0, 0, 6)
        versions = PolicyVersion(step - 1, 1), PolicyVersion(step, 1)
        entry = FileEntry(f"{keys.checkpoint_prefix(RUN, step, 1)}manifest.json", 2, "00")
        store.put(entry.key, b"{}")
        times = StepTimes(0, 0, 0, 0, 0, 0)
        previous = runs.write_step(
            StepRecord(
                RUN, step, 1, *versions, (use,), (), {}, {}, times, previous, entry, frontier=Frontier({"c0": key})
            )
        )
    runs.swap_head(records.head(step=3, version=PolicyVersion(3, 1), record=previous), etag)
    return runs


def test_gc_says_what_it_would_delete_and_deletes_nothing(
    run: Run, runs: RunStore, store: MemoryStore, tmp_path: Path
) -> None:
    before = {info.key for info in store.list("")}
    path = tmp_path / "plan.json"
    result = run("gc", "--run", RUN, "--keep-steps", "1", "--grace-s", "0", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "nothing was deleted" in result.stdout
    assert "steps 1, 2 would lose replay" in result.stdout
    assert {info.key for info in store.list("")} == before
    found = json.loads(path.read_text())
    assert found["applied"] is False
    assert found["unreplayable_steps"] == [1, 2]
    assert found["objects"] == 4, "two objects of trajectories, two checkpoints"


def test_gc_deletes_when_told_to(run: Run, runs: RunStore, store: MemoryStore) -> None:
    result = run("gc", "--run", RUN, "--keep-steps", "1", "--grace-s", "0", "--apply")
    assert result.exit_code == 0, result.output
    assert "4 objects are deleted" in result.stdout
    assert [info.key for info in store.list(keys.trajectories_prefix(RUN))] == [keys.trajectories(RUN, "c0", 2)]


def test_gc_of_an_unknown_run_is_a_wrong_setting(run: Run, runs: RunStore) -> None:
    result = run("gc", "--run", "another")
    assert result.exit_code == 2
    assert "no run 'another'" in result.stderr


@pytest.mark.parametrize(("agrees", "code"), [(True, 0), (False, 1)])
def test_replay_fails_unless_the_step_agrees_with_its_record(
    run: Run, runs: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agrees: bool, code: int
) -> None:
    asked: list[tuple[str, int]] = []

    def replay(run_store: RunStore, step: int, say: Callable[[str], None]) -> dict[str, Any]:
        asked.append((run_store.run, step))
        return RESULT | {"agrees": agrees}

    monkeypatch.setattr(cli_runs, "replay", replay)
    path = tmp_path / "replay.json"
    result = run("replay", "--run", RUN, "--step", "3", "--json", str(path))
    assert result.exit_code == code, result.output
    assert asked == [(RUN, 3)]
    assert "train/loss" in result.stdout
    assert json.loads(path.read_text())["agrees"] is agrees
