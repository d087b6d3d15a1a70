# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Turns by the vLLM that TRL has in its process."""

from __future__ import annotations


class VllmTurns:
    """Samples a turn of each episode, from its whole context: vLLM finds again what it has computed."""

    def __init__(self, trainer, rows):
        self._vllm = trainer.vllm_generation
        self._contexts = [[] for _ in range(rows)]

    def sample(self, observed):
        """One turn after each observation: the ids and their log-probabilities."""
        for context, ids in zip(self._contexts, observed, strict=True):
            context += ids
        _, turns, logprobs, _ = self._vllm.generate(prompts=self._contexts, images=None, num_generations=1)
        for context, ids in zip(self._contexts, turns, strict=True):
            context += ids[:-1]
        return [list(ids) for ids in turns], [[token[0] for token in turn] for turn in logprobs]

    def keep(self, rows):
        """Go on with these episodes alone."""
        self._contexts = [self._contexts[row] for row in rows]
