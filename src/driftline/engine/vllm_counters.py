# pyright: basic
"""vLLM's counters and gauges, kept in this process as the engine's steps report them."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class Counters(StatLoggerBase):
    """Sums since the start, and the gauges of the last step. Scores and probes count one sampled token each."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from zero."""
        self.steps = 0
        self.waiting = 0
        self.kv_cache_share = 0.0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Take in one engine step."""
        self.steps += 1
        if scheduler_stats is not None:
            self.waiting = scheduler_stats.num_waiting_reqs
            self.kv_cache_share = scheduler_stats.kv_cache_usage
            self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
            self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
            self.prompt_tokens += iteration_stats.num_prompt_tokens
            self.generated_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Nothing to do."""
