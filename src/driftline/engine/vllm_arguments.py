# pyright: basic
"""How vLLM's `AsyncLLM` is made from the engine's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from driftline.engine.environment_variables import is_cpu_build
from driftline.errors import ConfigurationError
from driftline.params import EngineParameters

MAX_BATCHED_TOKENS = 16384
"""Tokens of one engine step: enough that prompts are not cut into chunks, where that fits into memory."""
NGRAM_TOKENS = (2, 4)
"""Fewest and most last tokens that are looked for in the context."""
EXTENSION = "driftline.weights.vllm_backend.WeightExtension"
BACKEND = "driftline_store"


def build(params: EngineParameters, model_dir: Path) -> tuple[Any, Any]:
    """Start an engine; blocks until its processes are ready. Returns the `AsyncLLM` and its `Counters`."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    from driftline.engine.vllm_counters import Counters

    made: list[Counters] = []

    def counters(vllm_config: Any, engine_index: int = 0) -> Counters:
        made.append(Counters(vllm_config, engine_index))
        return made[0]

    llm = AsyncLLM.from_engine_args(engine_arguments(params, model_dir), stat_loggers=[counters])
    # Nobody scrapes Prometheus here, and it costs each step.
    manager: Any = llm.logger_manager
    manager.stat_loggers = [one for one in manager.stat_loggers if not isinstance(one, PrometheusStatLogger)]
    return llm, made[0]


def engine_arguments(params: EngineParameters, model_dir: Path) -> Any:
    """VLLM's `AsyncEngineArgs`."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    cpu = is_cpu_build()
    return AsyncEngineArgs(
        model=str(model_dir),
        skip_tokenizer_init=True,
        dtype=params.dtype,
        seed=0,
        max_model_len=params.max_model_len,
        max_num_seqs=params.max_num_seqs,
        max_num_batched_tokens=batched_tokens(params),
        block_size=params.block_size,
        enable_prefix_caching=params.prefix_caching,
        gpu_memory_utilization=params.gpu_memory_utilization,
        tensor_parallel_size=params.tensor_parallel_size,
        # On CPUs there is nothing to compile for, and one process is quicker than two.
        enforce_eager=cpu,
        distributed_executor_backend="uni" if cpu else None,
        scheduling_policy="priority",
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        disable_log_stats=True,
        # The progress bar holds a semaphore that nobody returns when the process is killed.
        use_tqdm_on_load=False,
        speculative_config=speculation(params),
        worker_extension_cls=EXTENSION,
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
    )


def batched_tokens(params: EngineParameters) -> int:
    """Most tokens of one engine step."""
    most = params.max_num_seqs * params.max_model_len
    decoding = params.max_num_seqs * (1 + params.speculative_tokens)
    return max(params.max_model_len, decoding, min(most, MAX_BATCHED_TOKENS))


def speculation(params: EngineParameters) -> dict[str, Any] | None:
    """VLLM's `speculative_config`: guesses from n-grams of the request's own context; None is off.

    Raises:
        ConfigurationError: The installed vLLM gives wrong log-probabilities with it.
    """
    if not params.speculative_tokens:
        return None
    if is_cpu_build():
        raise ConfigurationError(
            "engine.speculative_tokens: with guessed tokens vLLM's CPU engine gives wrong log-probabilities: set it "
            "to 0"
        )
    return {
        "method": "ngram",
        "num_speculative_tokens": params.speculative_tokens,
        "prompt_lookup_min": NGRAM_TOKENS[0],
        "prompt_lookup_max": NGRAM_TOKENS[1],
    }
