# pyright: basic
"""A mend of vLLM's CPU engine, for its workers: seeded sampling of prompts that are cut into chunks."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def keep_seeded_draws_on_cpu() -> None:
    """Mend seeded sampling on CPUs where a prompt is cut into chunks, or recomputed in part.

    vLLM samples a token for the unfinished chunk too, discards it, and turns the request's generator back by
    `set_offset`, which CPU generators do not have: the engine dies. Here the state of such a generator is
    saved before sampling and restored after it, and the generator is hidden from the code that would turn it.
    Does nothing on other platforms, nor where vLLM no longer does that.
    """
    sample, bookkeep = GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync
    if not current_platform.is_cpu() or "set_offset" not in inspect.getsource(bookkeep):
        return

    def discarded(runner: Any) -> dict[int, torch.Generator]:
        held = runner.input_batch.generators
        if not held:
            return {}
        rows = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0]
        return {int(row): held[int(row)] for row in rows if int(row) in held}

    @wraps(sample)
    def sample_keeping_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in discarded(self).values()]
        try:
            return sample(self, *args, **kwargs)
        finally:
            for generator, state in states:
                generator.set_state(state)

    @wraps(bookkeep)
    def bookkeep_without_discarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = discarded(self)
        for row in hidden:
            del self.input_batch.generators[row]
        try:
            return bookkeep(self, *args, **kwargs)
        finally:
            self.input_batch.generators.update(hidden)

    GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync = sample_keeping_state, bookkeep_without_discarded
