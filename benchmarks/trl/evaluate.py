# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Held-out success of files of weights, named as arguments.

The same for all arms: plain transformers, temperature 1, one episode a task, the same draws for every file. Writes
one JSON object, step -> success.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tool_waits import game
from benchmarks.trl.cached_turns import CachedTurns
from benchmarks.trl.playing import play


def success(model, tokenizer, payloads, seed, max_turns, max_tokens, context_tokens):
    """Share of the tasks that are solved."""
    torch.manual_seed(seed)
    stop_ids = [tokenizer.convert_tokens_to_ids("\n"), tokenizer.eos_token_id]
    turns = CachedTurns(model, len(payloads), stop_ids, max_tokens)
    games = [game(max_turns, waits=False) for _ in payloads]
    played = asyncio.run(play(payloads, games, turns, tokenizer, stop_ids, context_tokens))
    return sum(episode.reward or 0.0 for episode in played) / len(played)


def main() -> None:
    """Evaluate the files, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--max-turns", type=int, required=True)
    parser.add_argument("--max-tokens-per-turn", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, required=True)
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(given.model_dir, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model_dir)
    payloads = [json.loads(line) for line in given.tasks.read_text().splitlines()]
    limits = given.max_turns, given.max_tokens_per_turn, given.context_tokens
    found = {}
    for file in given.files:
        model.load_state_dict(load_file(file))
        found[file.stem] = success(model, tokenizer, payloads, given.seed, *limits)
    given.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
