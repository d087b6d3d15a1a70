"""The process environment and the processors of child processes, from the run's parameters."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from driftline.engine.environment_variables import engine_environment
from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.training import environment_variables


def rollout_environment(params: RunParameters) -> dict[str, str]:
    """What a process that hosts an engine needs in its environment before vLLM is imported."""
    return engine_environment(params.engine, os.environ)


def training_environment(params: RunParameters) -> dict[str, str]:
    """What a process that trains, or makes or assembles a model, needs in its environment."""
    return environment_variables.training_environment(params, os.environ)


def pinned(cpus: Sequence[int]) -> list[str]:
    """The command that runs another one on these processors alone; empty for all processors.

    Raises:
        ConfigurationError: This machine does not have them, or cannot pin.
    """
    if not cpus:
        return []
    count = os.cpu_count() or 1
    if max(cpus) >= count:
        raise ConfigurationError(
            f"engine.cpus / training.cpus: there is no processor {max(cpus)} on this machine (0 to {count - 1})"
        )
    if shutil.which("taskset") is None:
        raise ConfigurationError("engine.cpus / training.cpus: needs the program taskset (util-linux)")
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]
