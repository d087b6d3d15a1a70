"""The cell as a process of its own, against a real S3: it ends with the run, and a killed one loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from driftline.params import RunParameters
from driftline.store import keys
from driftline.store.client import S3Store
from driftline.store.run_store import RunStore
from tests.support.seaweed import Seaweed
from tests.support.toy_run import ToyTrainer, create_run, toy_parameters, upload_scripted_model

WAIT_S = 90.0


class Child:
    """`python -m driftline.rollout.…`, and the events it has sent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[Mapping[str, Any]] = []

    async def read(self) -> int:
        """Read its events to their end; returns its exit code."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.events.append(json.loads(line))
        return await self.process.wait()


@contextlib.asynccontextmanager
async def child(seaweed: Seaweed, work_dir: Path, module: str, *arguments: str) -> AsyncIterator[Child]:
    environment = os.environ | dict(seaweed.environment) | {"DRIFTLINE_WORK_DIR": str(work_dir)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"driftline.rollout.{module}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kill_amid_work(cell: Child, run_store: RunStore) -> None:
    """Kill a cell that holds a claim which it has not finished: it is stopped first, so that it cannot meanwhile."""
    while True:
        os.kill(cell.process.pid, signal.SIGSTOP)
        if await asyncio.to_thread(unfinished, run_store):
            break
        os.kill(cell.process.pid, signal.SIGCONT)
        await asyncio.sleep(0.01)
    cell.process.kill()


def unfinished(run_store: RunStore) -> set[str]:
    """Keys of claims on groups that are not in the store."""
    run = run_store.run
    claims = {info.key for info in run_store.store.list(f"{keys.run_prefix(run)}claims/")}
    return claims - {keys.claim(run, group.number) for group in RunStore(run_store.store, run).new_groups()}


@pytest.fixture
def params() -> RunParameters:
    """A policy that says anything, at most ten turns of it."""
    return toy_parameters(environment={"max_turns": 6}, rollout={"lease_s": 2.0}, overlap={"lead_groups": 3})


@pytest.fixture
def run_store(s3_store: S3Store, params: RunParameters, tmp_path: Path) -> RunStore:
    model = upload_scripted_model(s3_store, tmp_path / "made")
    return create_run(s3_store, params, run=f"cell-{uuid.uuid4().hex[:8]}", model=model)


async def test_a_killed_cell_is_followed_by_another_and_every_group_is_there_once(
    seaweed: Seaweed, run_store: RunStore, params: RunParameters, tmp_path: Path
) -> None:
    trainer = ToyTrainer(run_store, params, steps=20, train_s=0.1)
    training = asyncio.create_task(trainer.run())
    arguments = ("cell", "--run", run_store.run, "--cell", "c0")
    async with asyncio.timeout(WAIT_S):
        async with child(seaweed, tmp_path, *arguments) as first:
            reading = asyncio.create_task(first.read())
            while len(trainer.batches) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await kill_amid_work(first, run_store)
            assert await reading == -9
        assert not training.done()
        async with child(seaweed, tmp_path, *arguments) as second:
            assert await second.read() == 0
        await training
    assert [event["event"] for event in first.events[:2]] == ["ready", "progress"]
    assert second.events[-1]["event"] == "result"
    groups = RunStore(run_store.store, run_store.run).new_groups()
    members = Counter((t.group, t.member) for group in groups for t in group.trajectories)
    assert set(members.values()) == {1}
    trained = [group.number for batch in trainer.batches for group in batch]
    assert len(trained) == len(set(trained)) == 60
    assert {t.attempt for group in groups for t in group.trajectories} == {1, 2}
    assert len({span.labels["cell"] for span in run_store.spans()}) == 1


async def test_evaluation_is_a_process_of_its_own(
    seaweed: Seaweed, run_store: RunStore, params: RunParameters, tmp_path: Path
) -> None:
    lease = run_store.take_epoch()
    trainer = ToyTrainer(run_store, params, steps=0)
    del lease
    await trainer.run()
    async with (
        asyncio.timeout(WAIT_S),
        child(seaweed, tmp_path, "evaluate", "--run", run_store.run, "--versions", "0") as evaluation,
    ):
        assert await evaluation.read() == 0
    (result,) = run_store.evaluations()
    assert (result.version, result.tasks, result.invalid) == (0, 8, 0)
    assert evaluation.events[-1] == {"event": "result", "success": {"0": result.success}}


async def test_a_run_that_is_not_there_is_said_and_not_retried(seaweed: Seaweed, tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), child(seaweed, tmp_path, "cell", "--run", "nowhere", "--cell", "c0") as lost:
        assert await lost.read() == 1
    assert lost.events[-1]["type"] == "ObjectMissing"
    assert "no run 'nowhere'" in lost.events[-1]["message"]
