# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""A batch of episodes, a turn of all at a time; the tools of a turn work at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from driftline.environment import Task


@dataclass
class Played:
    """One episode."""

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    """What was sampled and observed."""
    mask: list[int] = field(default_factory=list)
    """1 where it was sampled."""
    logprobs: list[float] = field(default_factory=list)
    reward: float | None = None

    def add(self, ids, logprobs=None):
        """Append what was sampled, with its log-probabilities, or observed."""
        self.ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)


async def play(payloads, games, turns, tokenizer, stop_ids, context_tokens):
    """Play each game to its end, or until its context is full: the episodes."""

    def encode(messages):
        return tokenizer.encode("".join(message.content for message in messages), add_special_tokens=False)

    starts = await asyncio.gather(
        *(game.reset(Task("", "", payload), 0) for game, payload in zip(games, payloads, strict=True))
    )
    played = [Played(encode(messages)) for messages in starts]
    going = list(range(len(games)))
    observed = [played[row].prompt_ids for row in going]
    while going:
        sampled, logprobs = turns.sample(observed)
        for row, ids, values in zip(going, sampled, logprobs, strict=True):
            played[row].add(ids, values)
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in sampled]
        results = await asyncio.gather(*(games[row].step(text) for row, text in zip(going, texts, strict=True)))
        observed, places = [], []
        for place, (row, ids, result) in enumerate(zip(going, sampled, results, strict=True)):
            episode = played[row]
            episode.reward = result.reward
            answer = [] if ids[-1] in stop_ids else [stop_ids[0]]
            answer += encode(result.messages)
            full = len(episode.prompt_ids) + len(episode.ids) + len(answer) >= context_tokens
            if result.terminated or result.truncated or full:
                continue
            episode.add(answer)
            observed.append([ids[-1], *answer])
            places.append(place)
        if places and len(places) < len(going):
            turns.keep(places)
        going = [going[place] for place in places]
    return played
