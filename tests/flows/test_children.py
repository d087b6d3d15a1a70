"""The flows of cell and trainer, with processes that act a script in place of engine and optimizer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from driftline.errors import ConfigurationError, LimitExceeded, ProcessFailed
from driftline.params import RunParameters
from driftline.records import Head, ModelSource, RunDescription
from driftline.store.run_store import RunStore
from flows.rollout import rollout
from flows.training import training
from tasks import overlap, restarts
from tasks.stores import run_store
from tests.support.processes import alive, all_gone

FINISHED = {"end": "finished"}
DIED = {"error": "EngineDied", "message": "the engine stopped answering"}

pytestmark = pytest.mark.usefixtures("surroundings")
Begin = Callable[..., RunStore]


class Stage:
    """Where the script lies, and the pids of those who acted it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, *lines: dict[str, Any], rank: int | None = None) -> None:
        name = "script" if rank is None else f"script.{rank}"
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    @property
    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    async def until_acting(self, processes: int) -> None:
        async with asyncio.timeout(60):
            while len(self.pids) < 2 * processes:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("FAKE_CHILD", str(tmp_path))
    monkeypatch.setattr(overlap, "CELL_MODULE", "tests.support.fake_child")
    monkeypatch.setattr(overlap, "TRAINER_MODULE", "tests.support.fake_child")
    monkeypatch.setattr(restarts, "FIRST_DELAY_S", 0.01)
    return Stage(tmp_path)


@pytest.fixture
def begin() -> Begin:
    def create(**parameters: Any) -> RunStore:
        run = f"flows-{uuid4().hex[:8]}"
        stored = RunParameters.model_validate(parameters).model_dump(mode="json")
        store = run_store(run)
        model = ModelSource("d" * 32, "models/d/", (), False)
        store.create(RunDescription(run, time.time(), stored, "test", model, "v", "h", None))
        return store

    return create


async def test_a_cell_that_dies_is_started_again_until_the_run_is_finished(stage: Stage, begin: Begin):
    store = begin(limits={"cell_restarts": 2})
    stage.write(DIED, {"killed": True}, FINISHED)
    await rollout(run=store.run, cell="c0")
    assert len(stage.pids) == 2 * 3
    assert await all_gone(stage.pids)


async def test_a_cell_that_dies_too_often_fails_with_its_last_error(stage: Stage, begin: Begin):
    store = begin(limits={"cell_restarts": 1})
    stage.write(DIED)
    with pytest.raises(LimitExceeded, match=r"(?s)cell_restarts allows 1 restarts.*EngineDied: the engine"):
        await rollout(run=store.run, cell="c0")
    assert len(stage.pids) == 2 * 2
    assert await all_gone(stage.pids)


async def test_an_impossible_setting_fails_at_once(stage: Stage, begin: Begin):
    store = begin()
    stage.write({"error": "ConfigurationError", "message": "engine.dtype: no kernels for it"})
    with pytest.raises(ConfigurationError, match=r"engine\.dtype: no kernels for it"):
        await rollout(run=store.run, cell="c0")
    assert len(stage.pids) == 2


async def test_the_reason_in_the_runs_head_is_the_flows_message(stage: Stage, begin: Begin):
    store = begin()
    stage.write({"end": "failed", "reason": "limits.failed_groups: 65 groups were given up"})
    with pytest.raises(LimitExceeded, match=r"^limits\.failed_groups: 65 groups were given up$"):
        await rollout(run=store.run, cell="c0")


async def test_a_trainer_that_fails_for_good_says_so_in_the_head(stage: Stage, begin: Begin):
    store = begin(limits={"trainer_restarts": 0})
    stage.write({"error": "ProcessFailed", "message": "shapes differ"})
    store.create_head(Head(1, 0, None, None, 0, (), 0, ((0, "v"),)))
    with pytest.raises(ProcessFailed, match="shapes differ"):
        await training(run=store.run)
    head, _ = store.read_head()
    assert head.state == "failed"
    assert "shapes differ" in head.reason


async def test_a_rank_that_fails_ends_all_ranks(stage: Stage, begin: Begin):
    store = begin(training={"ranks": 2}, limits={"trainer_restarts": 0})
    stage.write({"sleep": 300}, rank=0)
    stage.write({"sleep": 3, **DIED}, rank=1)
    started = time.monotonic()
    with pytest.raises(LimitExceeded, match=r"limits\.trainer_restarts"):
        await training(run=store.run)
    assert time.monotonic() - started < 100
    assert len(stage.pids) == 2 * 2
    assert await all_gone(stage.pids)


async def test_a_cancelled_flow_leaves_no_process(stage: Stage, begin: Begin):
    store = begin()
    stage.write({"sleep": 300})
    flow = asyncio.create_task(rollout(run=store.run, cell="c0"))
    await stage.until_acting(1)
    assert len(alive(stage.pids)) == 2
    flow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flow
    assert await all_gone(stage.pids)
