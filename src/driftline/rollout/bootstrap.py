"""What a process that generates needs before it can: the run, its base model, a renderer and an engine."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from driftline.engine.making import make_engines
from driftline.engine.protocol import Engine
from driftline.engine.tokens import Renderer, open_renderer
from driftline.environment import TaskFamily, resolve, tool_schemas
from driftline.errors import ConfigurationError
from driftline.params import EngineParameters, RunParameters, Settings
from driftline.records import RunDescription
from driftline.store import files
from driftline.store.client import open_store
from driftline.store.run_store import RunStore


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
    model_dir = files.local_model(run_store.store, description.model, settings.work_dir)
    renderer = open_renderer(model_dir, parameters.model.rendering, stop=family.stop, tools=tool_schemas(family))
    return Surroundings(run_store, description, parameters, family, model_dir, renderer)


def make_engine(parameters: EngineParameters, model_dir: Path, run: str) -> Engine:
    """Make the engine that the parameters name, to serve the weights of a run; it is not started yet."""
    return make_engines(parameters, model_dir, run)


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
