# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The user plays: TRL asks for a batch of episodes, and gets tokens, masks, log-probabilities and rewards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from datasets import Dataset
from trl import GRPOTrainer

from benchmarks.tool_waits import game
from benchmarks.trl.cached_turns import CachedTurns
from benchmarks.trl.measured import Measure, asked
from benchmarks.trl.playing import play
from benchmarks.trl.settings import configuration, open_policy
from benchmarks.trl.vllm_on_processors import keep_weights_loadable
from benchmarks.trl.vllm_turns import VllmTurns

ASKED = asked()


def rollout(prompts, trainer):
    """Play the tasks that the prompts hold."""
    stop_ids = trainer.eos_token_ids
    games = [game(ASKED.max_turns, waits=ASKED.tool_waits) for _ in prompts]
    if ASKED.vllm:
        turns = VllmTurns(trainer, len(games))
    else:
        turns = CachedTurns(trainer.model, len(games), stop_ids, ASKED.max_tokens_per_turn)
    payloads = [json.loads(prompt) for prompt in prompts]
    tokenizer = trainer.processing_class
    played = asyncio.run(play(payloads, games, turns, tokenizer, stop_ids, ASKED.context_tokens))
    return {
        "prompt_ids": [episode.prompt_ids for episode in played],
        "completion_ids": [episode.ids for episode in played],
        "logprobs": [episode.logprobs for episode in played],
        "env_mask": [episode.mask for episode in played],
        "earned": [episode.reward or 0.0 for episode in played],
    }


def reward(completions, earned, **kwargs):
    """What the games have given."""
    return earned


def main():
    """Train."""
    model, tokenizer = open_policy(ASKED)
    if ASKED.vllm:
        keep_weights_loadable()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=configuration(ASKED, model.generation_config.eos_token_id),
        train_dataset=Dataset.from_dict({"prompt": Path(ASKED.tasks).read_text().splitlines()}),
        rollout_func=rollout,
        reward_funcs=reward,
    )
    trainer.add_callback(Measure(ASKED, trainer))
    trainer.train()


if __name__ == "__main__":
    main()
