"""Five kills at the processes of a run, without the stack around them: cells, trainer, and the store itself.

What restarts is the product: `run_until_over`, as the flow runs of cell and trainer use it. The store is started
again by the test, as supervisord would. `make faults` kills at a whole stack (`tests.faults.kills`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from driftline.params import RunParameters, settings
from driftline.process import supervise
from driftline.records import Head
from driftline.store.run_store import RunStore
from driftline.training import base_model
from tasks.processes import run_until_over
from tests.faults.verification import Observer, verify
from tests.support.environments import Dice
from tests.support.seaweed import Seaweed, running_seaweed
from tests.support.toy_run import create_run
from tests.support.training import tiny_model

STEPS = 14
DEADLINE_S = 150.0
CELL, TRAINER = "driftline.rollout.cell", "driftline.training.entry"
KILLS = (CELL, TRAINER, "store", CELL, TRAINER)

pytestmark = pytest.mark.timeout(400)


def parameters() -> RunParameters:
    return RunParameters.model_validate(
        {
            "environment": {"id": "tests.support.environments:Dice", "task_set": "kills"},
            "rollout": {"group_size": 4, "groups_per_step": 2, "cells": 2, "lease_s": 3},
            "overlap": {"lead_groups": 4, "max_lag_versions": 6},
            "engine": {"backend": "scripted", "max_model_len": 128},
            "training": {"steps": STEPS, "micro_batch_tokens": 256},
            "tracking": {"traces_every_steps": 0},
        }
    )


@pytest.fixture
def seaweed(tmp_path: Path) -> Iterator[Seaweed]:
    """A store of its own: it is killed."""
    folder = tmp_path / "seaweed"
    folder.mkdir()
    with running_seaweed(folder) as server:
        yield server


@pytest.fixture
def run_store(seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    for name, value in {**seaweed.environment, "DRIFTLINE_WORK_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DRIFTLINE_MLFLOW_URI", raising=False)
    settings.cache_clear()
    store = seaweed.store()
    model = base_model.publish(store, "fedcba9876543210" * 2, tiny_model(tmp_path / "model"), "a tiny Llama")
    return create_run(store, parameters(), run=f"kills-{uuid.uuid4().hex[:8]}", family=Dice(), model=model)


def process(run_store: RunStore, module: str, *arguments: str) -> asyncio.Task[None]:
    """A process of the run, supervised as its flow run does it, until the run is over."""

    async def start() -> None:
        environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
        await supervise([sys.executable, "-m", module, "--run", run_store.run, *arguments], env=environment)

    work = run_until_over(start, run_store, name=module, limit=5, limit_field="limits")
    return asyncio.create_task(work, name=f"{module} {arguments}")


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come in {DEADLINE_S:.0f} s"
        await asyncio.sleep(0.05)


async def kill(seaweed: Seaweed, kind: str, rng: Random) -> None:
    """SIGKILL one process of a kind."""
    if kind == "store":
        seaweed.stop(signal.SIGKILL)
        await asyncio.to_thread(seaweed.start)
        return
    victims: list[psutil.Process] = []

    def found() -> bool:
        victims[:] = [child for child in psutil.Process().children() if kind in child.cmdline()]
        return bool(victims)

    await until(found, f"a process of {kind}")
    os.kill(rng.choice(victims).pid, signal.SIGKILL)


async def test_five_kills_lose_nothing(seaweed: Seaweed, run_store: RunStore):
    rng = Random(1)
    observer = Observer(RunStore(seaweed.store(patience_s=2.0), run_store.run))
    working = [
        process(run_store, TRAINER),
        process(run_store, CELL, "--cell", "c0"),
        process(run_store, CELL, "--cell", "c1"),
    ]

    def step() -> int:
        head: Head | None = observer.head
        for task in working:
            if task.done():
                task.result()
        return 0 if head is None else head.step

    try:
        for number, kind in enumerate(KILLS):
            await until(lambda past=2 * number: step() > past, "the next step")
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await kill(seaweed, kind, rng)
        await asyncio.wait_for(asyncio.gather(*working), DEADLINE_S)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await asyncio.to_thread(observer.stop)

    found = verify(RunStore(seaweed.store(), run_store.run), observer.committed, expected_steps=STEPS)
    assert observer.doubles == []
    assert (found.steps, found.steps_lost, found.groups_lost, found.groups_twice) == (STEPS, 0, 0, 0), found
    assert (found.members_twice, found.versions_wrong) == (0, 0), found
    assert found.ledger_balances, found.notes
    assert found.groups_trained == 2 * STEPS
    epochs = {record.epoch for record in run_store.steps()}
    assert len(epochs) >= 3, "two trainers were killed, so three have committed steps"
