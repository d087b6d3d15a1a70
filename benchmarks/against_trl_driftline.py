"""Driftline's part of the comparison with TRL: what a user sets, a run, and the weights of its versions."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.local_run import begin, play
from benchmarks.trl import weights_name
from driftline.engine.vllm_engine import VllmEngine
from driftline.params import RunParameters, settings
from driftline.process import supervise
from driftline.records import ModelSource, StepRecord
from driftline.rollout.bootstrap import read_run
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.training.environment_variables import training_environment

GROUPS, GROUP_SIZE = 8, 8
LEADS = {"driftline-synchronous": 0, "driftline-overlapped": GROUPS}
"""Arm -> groups of lead."""
WAITING = "benchmarks.tool_waits:WaitingChase"
NEVER = 10_000


def chosen(arm: str, *, waits: bool, seed: int, steps: int, learning_rate: float) -> dict[str, Any]:
    """What a user sets; all else is Driftline's default."""
    lead = LEADS[arm]
    return {
        "seed": seed,
        "environment": {"id": WAITING} if waits else {},
        "rollout": {
            "groups_per_step": GROUPS, "group_size": GROUP_SIZE, "episodes_in_flight": (GROUPS + lead) * GROUP_SIZE,
        },
        "overlap": {"lead_groups": lead},
        "training": {"steps": steps, "learning_rate": learning_rate},
        "checkpoint": {"every_steps": NEVER},
        "tracking": {"traces_every_steps": 0},
    }  # fmt: skip


def lines_set(parameters: Mapping[str, Any]) -> int:
    """How many values a user sets, which is as many lines."""
    return sum(lines_set(value) if isinstance(value, Mapping) else 1 for value in parameters.values())


async def run(
    params: RunParameters, name: str, store: ObjectStore, model: ModelSource, folder: Path
) -> tuple[RunStore, list[dict[str, Any]]]:
    """Run to the end, with an engine of its own; returns the run, and what is kept of each step."""
    await begin(params, name, store, folder, model=model)
    found = await asyncio.to_thread(read_run, name, settings())
    engine = VllmEngine(params.engine, found.model_dir, run=name)
    try:
        await engine.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(_train(params, name, folder))
            group.create_task(play(found, engine))
    finally:
        await engine.close()
    return found.run_store, steps_of(await asyncio.to_thread(found.run_store.steps))


def steps_of(records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Seconds and mean reward of each step; the first begins when engine and trainer are ready."""
    return [
        {
            "seconds": record.times.committed - record.times.previous_commit,
            "reward": record.metrics[metrics.REWARD_MEAN],
            "lag": record.metrics[metrics.LAG_STEPS_MEAN],
            "k3_nats": record.metrics[metrics.K3],
        }
        for record in records
    ]


def save_weights(run_store: RunStore, steps: Sequence[int], directory: Path) -> None:
    """Write the weights after some steps as files. Blocks."""
    from safetensors.torch import save_file

    from driftline.weights.assemble import assemble

    for record in run_store.steps():
        if record.step in steps:
            tensors = assemble(run_store.store, run_store.read_manifest(record.version_out))
            save_file(tensors, directory / weights_name(record.step))


async def _train(params: RunParameters, name: str, folder: Path) -> None:
    command = [sys.executable, "-m", "driftline.training.entry", "--run", name]
    with (folder / f"{name}-trainer.log").open("w") as file:
        await supervise(
            command,
            env={**os.environ, **training_environment(params, os.environ)},
            on_log=lambda line: print(line, file=file),
        )
