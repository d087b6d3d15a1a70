"""Gymnasium's spaces in text: a policy's turn as an action, and an observation as what the policy reads.

Nothing here imports Gymnasium: a space is told by the name of its class, whose attributes are Gymnasium's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from driftline.errors import ConfigurationError

Reader = Callable[[str], Any]

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
COLOURED = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0m", re.DOTALL)
COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
"""As `gymnasium.utils.colorize` numbers them: from 30, and from 40 as a background."""
LONGEST_CHARSET = 70


class NoAction(ValueError):
    """A turn has no action of the space in it; the message is what the policy is told."""


def reader_of(space: Any, names: Sequence[str]) -> Reader:
    """What reads an action from a turn: all of it, or what it has between <answer> and </answer>.

    Raises:
        ConfigurationError: The space is of another kind, or `names` are not one for each action.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return _reader_of_numbers(int(space.start), int(space.n), tuple(names))
    if names:
        raise ConfigurationError(f"actions are names in a Discrete space, and this is {kind}: leave them out")
    if kind == "Text":
        return lambda turn: _text_in(space, turn)
    raise ConfigurationError(
        f"actions in a {kind} space have no form in text: give `read`, a function from a turn to an action"
    )


def how_to_answer(space: Any, names: Sequence[str]) -> str:
    """The form of an action, for the prompt."""
    if type(space).__name__ == "Text":
        return f"Answer with {_limits(space)}."
    first, last = int(space.start), int(space.start) + int(space.n) - 1
    choice = f"one of: {', '.join(names)}" if names else f"a whole number from {first} to {last}"
    return f"Answer with {choice}, and nothing else, or put it between <answer> and </answer>."


def shown(made: Any, observation: Any) -> str:
    """An observation in text: itself if it is text, the environment's drawing, or JSON."""
    if isinstance(observation, str):
        return observation
    if made.render_mode == "ansi":
        drawn = made.render()
        return without_escapes(drawn if isinstance(drawn, str) else "\n".join(map(str, drawn)))
    # Not `to_jsonable`, which is for batches: it turns an observation inside out.
    return json.dumps(observation, default=_plain)


def without_escapes(text: str) -> str:
    """Terminal colours as words, since they often say where something is: `<red>S</red>`."""
    return COLOURED.sub(lambda found: _coloured(found[1], found[2]), text)


def _reader_of_numbers(start: int, count: int, names: tuple[str, ...]) -> Reader:
    if names and len(names) != count:
        raise ConfigurationError(f"{len(names)} names for {count} actions: give one for each, in their order")
    by_name = {name.casefold(): start + index for index, name in enumerate(names)}

    def read(turn: str) -> int:
        answer = _answer_in(turn)
        if answer.casefold() in by_name:
            return by_name[answer.casefold()]
        number = int(answer) if NUMBER.fullmatch(answer) else None
        if number is None or not start <= number < start + count:
            choice = ", ".join(names) if names else f"{start} to {start + count - 1}"
            raise NoAction(f"there are {choice}")
        return number

    return read


def _text_in(space: Any, turn: str) -> str:
    for candidate in (turn, turn.strip(), _answer_in(turn)):
        if space.contains(candidate):
            return candidate
    raise NoAction(f"write {_limits(space)}")


def _limits(space: Any) -> str:
    characters = cast(str, space.characters)
    told = "" if len(characters) > LONGEST_CHARSET else f", of {characters!r}"
    return f"{space.min_length} to {space.max_length} characters{told}"


def _answer_in(turn: str) -> str:
    found = cast(list[str], TAGGED.findall(turn))
    return (found[-1] if found else turn).strip()


def _coloured(codes: str, text: str) -> str:
    names = [_colour(int(code)) for code in codes.split(";") if code.isascii() and code.isdigit()]
    known = [name for name in names if name]
    return f"<{known[-1]}>{text}</{known[-1]}>" if known else text


def _colour(code: int) -> str:
    index = code - 40 if code >= 40 else code - 30
    return COLOURS[index] if 0 <= index < len(COLOURS) else ""


def _plain(value: Any) -> Any:
    """What JSON does not have: numpy's arrays and numbers, and whatever else there is as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
