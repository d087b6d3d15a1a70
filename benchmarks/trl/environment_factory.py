# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""TRL plays: every turn is a call of a tool, but a well-formed answer, which ends the episode."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from datasets import Dataset
from trl import GRPOTrainer

from benchmarks.tool_waits import game
from benchmarks.trl.measured import Measure, asked
from benchmarks.trl.settings import ANSWER, configuration, open_policy
from benchmarks.trl.vllm_on_processors import keep_weights_loadable
from driftline.environment import Task

ASKED = asked()
LOOP = asyncio.new_event_loop()


class Chase:
    """One episode."""

    def __init__(self):
        self._game = game(ASKED.max_turns, waits=ASKED.tool_waits)

    def reset(self, payload, **kwargs):
        """Begin an episode."""
        LOOP.run_until_complete(self._game.reset(Task("", "", json.loads(payload)), seed=0))

    def act(self, action: str) -> str:
        """Take a turn.

        Args:
            action: What to do.

        Returns:
            What is observed.
        """
        return "".join(message.content for message in LOOP.run_until_complete(self._game.step(action)).messages)

    def _judge(self, answer: str) -> float:
        return LOOP.run_until_complete(self._game.step(answer)).reward or 0.0


def reward(completions, environments, **kwargs):
    """Of each episode, by its last turn."""
    pairs = zip(completions, environments, strict=True)
    return [environment._judge(turns[-1]["content"]) for turns, environment in pairs]


def main():
    """Train."""
    model, tokenizer = open_policy(ASKED)

    def parse(ids, **kwargs):
        text = tokenizer.decode(ids, skip_special_tokens=True).removesuffix("\n")
        if ANSWER.fullmatch(text):
            return {"role": "assistant", "content": text}
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": text}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    tokenizer.parse_response, tokenizer.response_template = parse, {}
    if ASKED.vllm:
        keep_weights_loadable()
    payloads = [json.loads(line) for line in Path(ASKED.tasks).read_text().splitlines()]
    rows = [
        {"prompt": [{"role": "user", "content": f"?{payload['start']}\n"}], "payload": json.dumps(payload)}
        for payload in payloads
    ]
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=configuration(ASKED, model.generation_config.eos_token_id),
        train_dataset=Dataset.from_list(rows),
        environment_factory=Chase,
        reward_funcs=reward,
    )
    trainer.add_callback(Measure(ASKED, trainer))
    trainer.train()


if __name__ == "__main__":
    main()
