"""What a process that generates needs before it can: the run, its base model, a renderer and an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from driftline.engine.protocol import Engine
from driftline.engine.tokens import Renderer, open_renderer
from driftline.environment import TaskFamily, resolve
from driftline.errors import ConfigurationError
from driftline.params import EngineParameters, RunParameters, Settings
from driftline.records import RunDescription
from driftline.store import files
from driftline.store.client import open_store
from driftline.store.run_store import RunStore

SPILL_SHARE = 0.25
"""A prefix may cost an engine this share of its sequences more than the least loaded one has."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A run as a process finds it."""

    run_store: RunStore
    description: RunDescription
    parameters: RunParameters
    family: TaskFamily
    model_dir: Path
    renderer: Renderer


def read_run(run: str, settings: Settings) -> Surroundings:
    """Read the run's description and bring its base model to this machine. Blocks.

    Raises:
        ConfigurationError: The environment id is unknown, or the base model is no model directory.
        ObjectMissing: There is no such run.
    """
    run_store = RunStore(open_store(settings), run)
    description = run_store.describe()
    parameters = RunParameters.model_validate(description.parameters)
    family = resolve(parameters.environment.id)
    model = description.model
    model_dir = settings.work_dir / "models" / model.digest
    files.download(run_store.store, model.files, model.prefix, model_dir)
    renderer = open_renderer(model_dir, parameters.model.rendering, stop=family.stop)
    return Surroundings(run_store, description, parameters, family, model_dir, renderer)


def make_engine(parameters: EngineParameters, model_dir: Path, run: str) -> Engine:
    """Make the engine that the parameters name, to serve the weights of a run; it is not started yet."""
    if parameters.replicas == 1:
        return _one_engine(parameters, model_dir, run)
    from driftline.engine.pool import EnginePool
    from driftline.engine.routing import RoutingBounds

    capacity = parameters.max_num_seqs
    return EnginePool(
        lambda index: _one_engine(parameters, model_dir, run),
        parameters.replicas,
        bounds=RoutingBounds(capacity, max(1, int(capacity * SPILL_SHARE))),
        stall_s=parameters.request_deadline_s / 2,
    )


def _one_engine(parameters: EngineParameters, model_dir: Path, run: str) -> Engine:
    if parameters.backend == "scripted":
        from driftline.engine.scripted import ScriptedEngine

        return ScriptedEngine(
            vocabulary=_vocabulary(model_dir),
            max_model_len=parameters.max_model_len,
            max_num_seqs=parameters.max_num_seqs,
        )
    from driftline.engine.vllm_engine import VllmEngine

    return VllmEngine(parameters, model_dir, run=run)


def pin(cpus: Collection[int]) -> None:
    """Confine this process, and those that it will start, to some processors; none named is all.

    Raises:
        ConfigurationError: This process may not use one of them.
    """
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise ConfigurationError(f"engine.cpus: this process may not use {sorted(cpus)} ({error})") from None
    if os.sched_getaffinity(0) != set(cpus):
        raise ConfigurationError(f"engine.cpus: of {sorted(cpus)} only {sorted(os.sched_getaffinity(0))} are there")


def _vocabulary(model_dir: Path) -> int:
    path = model_dir / "config.json"
    if not path.is_file():
        raise ConfigurationError(f"{model_dir} is no model directory: it has no config.json")
    return int(json.loads(path.read_text())["vocab_size"])
