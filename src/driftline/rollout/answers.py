"""What an environment says, as an episode takes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index

from driftline.environment import Message
from driftline.errors import EnvironmentFailed

LONG_TEXT = 20_000
"""Characters that take a tokenizer more than a millisecond or two: it works in a thread then."""


def given_tokens(messages: Sequence[Message], vocabulary_size: int) -> tuple[int, ...]:
    """The token ids of messages that come as such.

    Raises:
        EnvironmentFailed: Some have none, or one is none of the model's.
    """
    if any(message.token_ids is None for message in messages):
        raise EnvironmentFailed("some messages have token ids and some have none: give token ids to all or to none")
    try:
        ids = tuple(index(token) for message in messages for token in message.token_ids or ())
    except TypeError as error:
        raise EnvironmentFailed(f"the environment answered with token ids that are none ({error})") from None
    unknown = [token for token in ids if not 0 <= token < vocabulary_size]
    if unknown:
        raise EnvironmentFailed(
            f"the environment answered with token id {unknown[0]}, and the model has 0 to {vocabulary_size - 1}"
        )
    return ids


def readable(messages: Sequence[Message]) -> list[Message]:
    """Messages for a reader: what is very long is cut."""
    return [
        replace(message, content=f"{message.content[:LONG_TEXT]} ...")
        if len(message.content) > LONG_TEXT
        else message
        for message in messages
    ]


def as_text(said: str) -> str:
    """What somebody said, as a file takes it: names of files may hold halves of surrogate pairs."""
    return said.encode(errors="replace").decode()
