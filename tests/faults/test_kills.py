"""Kills and outages at the processes of a run, without the stack around them.

What restarts is the product: `run_until_over`, as the flow runs of cell and trainer use it. The store is started
again by the test, as supervisord would. `make faults` kills at a whole stack (`tests.faults.kills`).
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from driftline.engine.tokens import save_character_tokenizer
from driftline.params import RunParameters, settings
from driftline.store.run_store import RunStore
from driftline.training import base_model
from tests.faults.verification import Observer, verify
from tests.support.environments import Dice
from tests.support.run_processes import CELL, TRAINER, RunProcesses, until
from tests.support.seaweed import Seaweed, running_seaweed
from tests.support.tiny_llama import save, tiny_llama
from tests.support.toy_run import create_run
from tests.support.training import tiny_model

KILLS = (CELL, TRAINER, "store", CELL, TRAINER)
OUTAGE_S = 60.0

pytestmark = pytest.mark.timeout(600)
NewRun = Callable[[RunParameters], RunStore]


def parameters(steps: int, **sections: dict[str, Any]) -> RunParameters:
    base: dict[str, dict[str, Any]] = {
        "environment": {"id": "tests.support.environments:Dice", "task_set": "kills"},
        "rollout": {"group_size": 4, "groups_per_step": 2, "cells": 2, "lease_s": 3},
        "overlap": {"lead_groups": 4, "max_lag_versions": 6},
        "engine": {"backend": "scripted", "max_model_len": 128},
        "training": {"steps": steps, "micro_batch_tokens": 256},
        "tracking": {"traces_every_steps": 0},
    }
    return RunParameters.model_validate(
        {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}
    )


@pytest.fixture
def seaweed(tmp_path: Path) -> Iterator[Seaweed]:
    """A store of its own: it is killed."""
    folder = tmp_path / "seaweed"
    folder.mkdir()
    with running_seaweed(folder) as server:
        yield server


@pytest.fixture
def new_run(seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewRun:
    for name, value in {**seaweed.environment, "DRIFTLINE_WORK_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DRIFTLINE_MLFLOW_URI", raising=False)
    settings.cache_clear()

    def made(params: RunParameters) -> RunStore:
        store = seaweed.store()
        directory = tmp_path / "model"
        if params.engine.backend == "vllm":  # its CPU kernels take no heads as small as those of the tiny model
            save(tiny_llama(0), directory)
            save_character_tokenizer(Dice().alphabet or "", directory, max_length=128)
        else:
            tiny_model(directory)
        model = base_model.publish(store, "fedcba9876543210" * 2, directory, "a tiny Llama")
        return create_run(store, params, run=f"kills-{uuid.uuid4().hex[:8]}", family=Dice(), model=model)

    return made


def observer_of(seaweed: Seaweed, run_store: RunStore) -> Observer:
    return Observer(RunStore(seaweed.store(patience_s=2.0), run_store.run))


async def test_five_kills_lose_nothing(seaweed: Seaweed, new_run: NewRun):
    steps, rng = 14, Random(1)
    run_store = new_run(parameters(steps))
    observer = observer_of(seaweed, run_store)
    run = RunProcesses(run_store, parameters(steps), observer)
    run.start(TRAINER)
    run.start(CELL, "--cell", "c0")
    run.start(CELL, "--cell", "c1")
    try:
        for number, kind in enumerate(KILLS):
            await run.until_step(2 * number + 1)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            if kind == "store":
                seaweed.stop(signal.SIGKILL)
                await asyncio.to_thread(seaweed.start)
            else:
                await run.kill(kind, rng)
        await run.wait()
    finally:
        await run.end()

    found = verify(RunStore(seaweed.store(), run_store.run), observer.committed, expected_steps=steps)
    assert observer.doubles == []
    assert (found.steps, found.steps_lost, found.groups_lost, found.groups_twice) == (steps, 0, 0, 0), found
    assert (found.members_twice, found.versions_wrong) == (0, 0), found
    assert found.ledger_balances, found.notes
    assert found.groups_trained == 2 * steps
    epochs = {record.epoch for record in run_store.steps()}
    assert len(epochs) >= 3, "two trainers were killed, so three have committed steps"


@pytest.mark.slow
async def test_an_outage_of_the_store_of_a_minute_is_waited_through(seaweed: Seaweed, new_run: NewRun):
    """No process may be started again for it: the limit is 0."""
    steps = 12
    run_store = new_run(parameters(steps))
    observer = observer_of(seaweed, run_store)
    run = RunProcesses(run_store, parameters(steps), observer, restarts=0)
    run.start(TRAINER)
    run.start(CELL, "--cell", "c0")
    run.start(CELL, "--cell", "c1")
    try:
        await run.until_step(3)
        seaweed.stop(signal.SIGKILL)
        began = time.monotonic()
        while time.monotonic() < began + OUTAGE_S:
            await asyncio.sleep(1.0)
            assert run.step < steps
        before = run.step
        await asyncio.to_thread(seaweed.start)
        await run.until_step(before + 1, deadline_s=30.0)
        await run.wait()
    finally:
        await run.end()
    found = verify(RunStore(seaweed.store(), run_store.run), observer.committed, expected_steps=steps)
    assert found.clean, found
    assert {record.epoch for record in run_store.steps()} == {1}


@pytest.mark.slow
async def test_two_vllm_cells_share_a_run_of_deltas_and_a_late_one_begins_with_the_newest(
    seaweed: Seaweed, new_run: NewRun
):
    """bf16, a learning rate at which few elements change, and more than five deltas before the second cell comes."""
    steps, late_at, rng = 150, 7, Random(2)
    params = parameters(
        steps,
        environment={"id": "tests.support.environments:LeisurelyDice"},
        engine={"backend": "vllm", "max_num_seqs": 16},
        training={"learning_rate": 1e-6},
        publication={"dtype": "bfloat16", "chain_factor": 4.0},
    )
    run_store = new_run(params)
    observer = observer_of(seaweed, run_store)
    run = RunProcesses(run_store, params, observer)
    run.start(TRAINER)
    run.start(CELL, "--cell", "c0")
    try:
        await run.until_step(late_at, deadline_s=240)
        run.start(CELL, "--cell", "c1")
        await until(lambda: len(run_store.offsets()) == 2 or run.step == steps, "the late cell", deadline_s=240)
        assert run.step < steps - 8, "the late cell came too late to share the work: this machine is too busy"
        await run.until_step(run.step + 4)
        await run.kill(CELL, rng)
        await run.wait(deadline_s=600)
    finally:
        await run.end()

    found = verify(RunStore(seaweed.store(), run_store.run), observer.committed, expected_steps=steps)
    assert found.clean, found
    assert found.longest_chain >= 5
    records = run_store.steps()
    cells = {use.key.split("/")[-2] for record in records for use in record.groups}
    groups = RunStore(run_store.store, run_store.run).new_groups()
    late = [t for group in groups for t in group.trajectories if t.cell == "c1" and t.segments]
    assert cells == {"c0", "c1"}
    assert min(segment.version for t in late for segment in t.segments) >= late_at
    worst = max(record.metrics["divergence/k3_nats"] for record in records)
    assert worst < 1e-3, "engines and trainer hold the same published weights"
