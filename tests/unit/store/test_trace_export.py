"""`driftline traces export`: which groups it takes, what it refuses, what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from driftline import cli, cli_reach, params, traces
from driftline.errors import ConfigurationError, ObjectMissing
from driftline.records import GroupUse, PolicyVersion, StepRecord, StepTimes
from driftline.store import client
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.store.trace_export import export
from tests.support import records
from tests.support.records import RUN

Run = Callable[..., Result]


@pytest.fixture
def runs() -> RunStore:
    """Three steps, each of which trained on the group of its number; group 9 is finished besides, 5 timed out."""
    runs = RunStore(MemoryStore(), RUN)
    runs.create(records.description())
    etag = runs.create_head(records.head())
    previous = None
    for step in (1, 2, 3):
        key = runs.append_groups("c0", step - 1, [records.group(step), records.group(step + 20)])
        use = GroupUse(step, key, 1, "t", "v1", 1.0, 2, 2, 0.5, 0.5, 0.5, 0.0, 0, 6)
        versions, times = (PolicyVersion(step - 1, 1), PolicyVersion(step, 1)), StepTimes(0, 0, 0, 0, 0, 0)
        previous = runs.write_step(StepRecord(RUN, step, 1, *versions, (use,), (), {}, {}, times, previous))
    runs.append_groups("c1", 0, [records.group(9), records.group(5, status="timeout", reward=None)])
    runs.swap_head(records.head(step=3, version=PolicyVersion(3, 1), record=previous), etag)
    return runs


def numbers(runs: RunStore, steps: tuple[int, int] | None = None) -> list[int]:
    return [members[0].group for members in traces.groups_of(export(runs, steps).trace)]


def test_all_that_is_finished_or_what_steps_trained_on(runs: RunStore) -> None:
    assert numbers(runs) == [1, 2, 3, 9, 21, 22, 23]
    assert numbers(runs, (2, 3)) == [2, 3]
    assert export(runs).left_out == {"a member ended as timeout": 1}
    assert {shape.source for shape in export(runs, (2, 2)).trace} == {f"run {RUN} steps 2-2"}


def test_what_is_not_there(runs: RunStore) -> None:
    with pytest.raises(ConfigurationError, match="no steps 3 to 4: it has steps 1 to 3"):
        export(runs, (3, 4))
    runs.store.delete([runs.steps()[0].groups[0].key])
    with pytest.raises(ConfigurationError, match="choose later steps than 1"):
        export(runs, (1, 1))
    with pytest.raises(ObjectMissing, match="no run 'other'"):
        export(RunStore(runs.store, "other"))


def test_a_run_without_anything_to_replay() -> None:
    runs = RunStore(MemoryStore(), RUN)
    runs.create(records.description())
    runs.create_head(records.head())
    with pytest.raises(ConfigurationError, match="no finished group"):
        export(runs)
    with pytest.raises(ConfigurationError, match="it has committed none"):
        export(runs, (1, 1))
    runs.append_groups("c0", 0, [records.group(0, request_seconds=())])
    with pytest.raises(ConfigurationError, match=r"none of 1 groups .* by its intervals"):
        export(runs)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: RunStore) -> Iterator[Run]:
    monkeypatch.setenv("DRIFTLINE_WORK_DIR", str(tmp_path / "stack"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    params.settings.cache_clear()
    monkeypatch.setattr(cli_reach, "adopt_environment", lambda values: None)
    monkeypatch.setattr(client, "open_store", lambda settings: runs.store)
    yield lambda *arguments: CliRunner().invoke(cli.app, ["traces", "export", *arguments])
    params.settings.cache_clear()


def test_the_command_writes_a_file_once_and_says_what_is_in_it(run: Run, runs: RunStore, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    result = run("--run", RUN, "--out", str(path))
    assert result.exit_code == 0, result.output
    assert traces.load(path) == export(runs).trace
    assert traces.digest(path.read_bytes()) in result.stdout
    assert "1: a member ended as timeout" in result.stdout
    body = path.read_bytes()
    again = run("--run", RUN, "--out", str(path), "--steps", "2")
    assert again.exit_code == 2
    assert "never changes" in again.stderr
    assert path.read_bytes() == body
    some = tmp_path / "some.jsonl"
    assert run("--run", RUN, "--out", str(some), "--steps", "2-3").exit_code == 0
    assert {shape.group for shape in traces.load(some)} == {2, 3}


@pytest.mark.parametrize("steps", ["", "x", "0", "3-2", "1-", "-2", "1-2-3"])
def test_steps_that_name_nothing(run: Run, tmp_path: Path, steps: str) -> None:
    result = run("--run", RUN, "--out", str(tmp_path / "t.jsonl"), f"--steps={steps}")
    assert result.exit_code == 2
    assert "such as 4-9" in result.stderr
    assert not (tmp_path / "t.jsonl").exists()
