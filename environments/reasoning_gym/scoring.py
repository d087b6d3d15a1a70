"""Exact scoring: right or not.

reasoning-gym's scorers give a share for an answer that contains the right one, is well formed, or comes near; here
only a full score counts. Where a scorer would run the answer as a program, or is lenient about what was asked, the
answer is judged here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from environments.reasoning_gym import library
from environments.reasoning_gym.expressions import harmless, value_of

Entry = Mapping[str, Any]
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
LONGEST = 20_000
"""Characters of an answer; no dataset asks for more."""
LONG_NUMBER = re.compile(r"\d{4}")


def answer_in(reply: str) -> str | None:
    """The last answer in a reply; None if there is none."""
    found = TAGGED.findall(reply)
    return found[-1].strip() if found else None


def is_right(dataset: str, answer: str, entry: Entry) -> bool:
    """Whether an answer has the full score. What makes the scorer fail is a wrong answer."""
    if not answer or len(answer) > LONGEST:
        return False
    if dataset in OWN:
        return OWN[dataset](answer, entry)
    if dataset in GUARDS and not GUARDS[dataset](answer):
        return False
    asked = copy.deepcopy(dict(entry))
    if dataset in OF_TUPLES:
        asked["metadata"] = _tuples(asked["metadata"])
    try:
        return library.scorer(dataset).score_answer(answer, asked) == 1.0
    except Exception:  # the policy: scorers trust answers to be well formed
        return False


def _same_text(answer: str, entry: Entry) -> bool:
    return answer == str(entry["answer"]).strip()


def _queens(answer: str, entry: Entry) -> bool:
    return answer in {one.strip() for one in entry["metadata"]["valid_answers"]}


def _uses(answer: str, numbers: list[int], target: int) -> bool:
    found = value_of(answer)
    return found is not None and found[0] == target and sorted(found[1]) == sorted(numbers)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


OWN: Mapping[str, Callable[[str, Entry], bool]] = {
    "binary_matrix": _same_text,
    "game_of_life_halting": _same_text,
    "spiral_matrix": _same_text,
    "string_insertion": _same_text,
    "n_queens": _queens,
    "countdown": lambda answer, entry: _uses(answer, entry["metadata"]["numbers"], entry["metadata"]["target"]),
    "puzzle24": lambda answer, entry: _uses(answer, entry["metadata"]["numbers"], 24),
}
"""Matrices, queens and `string_insertion` would run an answer; the last two as well, and the 24 puzzle would take any
four numbers. `game_of_life_halting` would take any answer: there the text `False` is true, as every other is."""

GUARDS: Mapping[str, Callable[[str], bool]] = {
    "polynomial_multiplication": harmless,
    "simple_integration": harmless,
    "intermediate_integration": harmless,
    "rubiks_cube": lambda answer: LONG_NUMBER.search(answer) is None,
}
"""What must hold before the library sees an answer."""

OF_TUPLES = frozenset({"arc_agi", "rearc"})
"""Compare with tuples, which JSON does not have."""
