"""A tiny character-level Llama that has learned the form of answers, and nothing of which is right."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from driftline.engine.tokens import save_character_tokenizer
from driftline.environment import Task, TaskFamily

ALPHABET = "\n" + "".join(sorted(set(string.printable) - set(string.whitespace) | {" "}))
IGNORED = -100


def answering_model(
    directory: Path, families: Sequence[TaskFamily], *, steps: int = 100, batch: int = 8, positions: int = 640
) -> Path:
    """Train a model on tasks of families that have oracles, each with the answer to another task of its family.

    So a group of answers is right in part: two words to choose from are right half the time.
    """
    tokenizer = save_character_tokenizer(ALPHABET, directory, max_length=positions)
    shown = [pair for family in families for pair in _demonstrations(family)]
    texts = [(tokenizer.encode(asked).ids, tokenizer.encode(f"{answer}\n").ids) for asked, answer in shown]
    kept, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(0)
    # Several wait for one another, on a machine that has no processor for each.
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            initializer_range=0.06,
            tie_word_embeddings=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=3e-3), Random(0)
    for _ in range(steps):
        rows = rng.sample(texts, batch)
        longest = max(len(asked) + len(answer) for asked, answer in rows)
        ids_BT = torch.tensor([[*a, *b] + [0] * (longest - len(a) - len(b)) for a, b in rows])
        labels_BT = torch.tensor([[IGNORED] * len(a) + b + [IGNORED] * (longest - len(a) - len(b)) for a, b in rows])
        optimizer.zero_grad()
        model(input_ids=ids_BT, labels=labels_BT).loss.backward()
        optimizer.step()
    torch.random.set_rng_state(kept)
    torch.set_num_threads(threads)
    model.save_pretrained(directory)
    return directory


def _demonstrations(family: TaskFamily) -> list[tuple[str, str]]:
    """The prompts of some tasks, each with the oracle's answer to another one."""
    tasks = family.generate(seed=1234, count=64)
    answers = [(family.oracle(task) or [""])[0] for task in tasks]
    Random(1).shuffle(answers)
    return [(asyncio.run(_prompt(family, task)), answer) for task, answer in zip(tasks, answers, strict=True)]


async def _prompt(family: TaskFamily, task: Task) -> str:
    environment = family.make()
    try:
        return "".join(message.content for message in await environment.reset(task, 0))
    finally:
        await environment.close()
