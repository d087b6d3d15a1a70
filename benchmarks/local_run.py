"""A run without Prefect, for benchmarks that host the engine themselves: its base policy, its objects, its cell."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from driftline.engine.environment_variables import engine_environment
from driftline.engine.protocol import Engine
from driftline.environment import resolve
from driftline.params import EngineParameters, RunParameters, settings
from driftline.process import supervise
from driftline.records import ModelSource
from driftline.rollout.bootstrap import Surroundings, pin
from driftline.rollout.cell import collect
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink
from driftline.training.base_model import BaseModelSpec, find
from driftline.training.environment_variables import training_environment
from tasks.refresh import Proposal, draw, publish
from tasks.runs import create, first_head
from tests.support.seaweed import Seaweed


def host_engine(params: EngineParameters, seaweed: Seaweed, folder: Path) -> None:
    """Make this process one that may start the engine, over a store, on its processors."""
    os.environ.update({**seaweed.environment, "DRIFTLINE_WORK_DIR": str(folder / "work")})
    os.environ.update(engine_environment(params, os.environ))
    settings.cache_clear()
    pin(params.cpus)


async def begin(
    params: RunParameters,
    run: str,
    store: ObjectStore,
    folder: Path,
    *,
    model: ModelSource | None = None,
    proposal: Proposal | None = None,
) -> None:
    """Create a run, over a base policy and tasks that are made or drawn where none are given."""
    model = model or await base_model(params, store, folder)
    chosen = params.environment
    family = resolve(chosen.id)
    if proposal is None:
        proposal = await asyncio.to_thread(draw, family, chosen.train_tasks, chosen.held_out_tasks, params.seed)
    versions = await asyncio.to_thread(publish, store, chosen.task_set, proposal)
    description = await create(run, params, model, versions, None)
    RunStore(store, run).create_head(first_head(description, params.overlap.lead_groups))


async def play(
    found: Surroundings, engine: Engine, on_progress: Callable[[Mapping[str, Any]], None] = lambda event: None
) -> None:
    """Be the run's one cell, over an engine that has started, until the run is over.

    Args:
        found: The run.
        engine: Generates.
        on_progress: Called with the cell's events.
    """
    await collect(
        found.run_store,
        found.parameters,
        cell="c0",
        engine=engine,
        renderer=found.renderer,
        family=found.family,
        sink=NullSink(),
        on_progress=on_progress,
    )


async def train(run: str, folder: Path, cpu: int, *trainer: str) -> None:
    """Be the run's trainer until the run is over: a module and its options, on a processor; logs to `folder`."""
    with (folder / f"{run}-trainer.log").open("w") as file:
        await supervise(
            ["taskset", "--cpu-list", str(cpu), sys.executable, "-m", *trainer, "--run", run],
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            on_log=lambda line: print(line, file=file),
        )


async def base_model(params: RunParameters, store: ObjectStore, folder: Path) -> ModelSource:
    """The base policy of a run: made in a process of its own where the store has none yet."""
    spec = BaseModelSpec.of(params)
    made = find(store, spec.digest())
    if made is None:
        file = folder / f"spec-{params.seed}.json"
        file.write_text(spec.model_dump_json())
        maker = [sys.executable, "-m", "driftline.training.warm_start", "--spec", str(file)]
        await supervise(maker, env={**os.environ, **training_environment(params, os.environ)})
        made = find(store, spec.digest())
    assert made is not None
    return made
