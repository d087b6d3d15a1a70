"""Stored episodes as text: their token ids through the run's own tokenizer, and never back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tokenizers import Tokenizer

from driftline.environment import Message
from driftline.errors import ConfigurationError
from driftline.records import ModelSource, Trajectory
from driftline.store.files import read_checked
from driftline.store.protocol import ObjectStore

TOKENIZER = "tokenizer.json"


def tokenizer_of(store: ObjectStore, model: ModelSource) -> Tokenizer:
    """The tokenizer of a run's base model, which is that of all of its policy versions. Fetches no weights.

    Raises:
        ConfigurationError: The model has none, or one that this version of `tokenizers` does not read.
        CorruptObject: It is not what the model's manifest says.
    """
    entry = next((file for file in model.files if file.key == model.prefix + TOKENIZER), None)
    if entry is None:
        raise ConfigurationError(f"the base model at {model.prefix} has no {TOKENIZER}: its tokens cannot be read")
    body = read_checked(store, entry)
    try:
        return Tokenizer.from_buffer(body)
    except ValueError as error:
        raise ConfigurationError(
            f"{entry.key} is no tokenizer that can be read ({error}): upgrade tokenizers"
        ) from None


def messages_of(trajectory: Trajectory, tokenizer: Tokenizer) -> list[Message]:
    """What an episode's policy read and wrote, a message for each unbroken stretch of sampled or other tokens.

    Texts are exact: special tokens, a template's headers and what ended a turn are in them. An answer after the last
    turn is not: no policy read it, and it is in no tokens. The roles are those that `tracking.traces` knows: `user`
    for the prompt, `assistant` for the policy, `tool` for all that it was answered.
    """
    messages: list[Message] = []
    start = 0
    for own, run in groupby(trajectory.loss_mask):
        end = start + len(list(run))
        role = "assistant" if own else "tool" if messages else "user"
        messages.append(Message(role, _text(tokenizer, trajectory.token_ids, start, end)))
        start = end
    return messages


def _text(tokenizer: Tokenizer, ids: Sequence[int], start: int, end: int) -> str:
    """Text of `ids[start:end]`; with the token before it, as some decoders drop a space at the beginning."""
    alone = _decode(tokenizer, ids[start:end])
    if start == 0:
        return alone
    before, both = _decode(tokenizer, ids[start - 1 : start]), _decode(tokenizer, ids[start - 1 : end])
    return both.removeprefix(before) if both.startswith(before) else alone


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)
