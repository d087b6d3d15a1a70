"""What must stand in the environment of a process that trains, before it imports torch and DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping

from driftline.engine.environment_variables import is_cpu_build
from driftline.params import RunParameters


def training_environment(params: RunParameters, base: Mapping[str, str]) -> dict[str, str]:
    """What a spawner adds to a child's environment so that the child can train, or make or assemble a model.

    Args:
        params: The run's parameters.
        base: The environment the child gets otherwise (usually `os.environ`).
    """
    variables = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS") or str(max(1, len(params.training.cpus))),
    }
    if is_cpu_build():
        variables["DS_ACCELERATOR"] = "cpu"
    return variables
