"""The check of the alphabet: a warm-started base policy knows its characters, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from driftline.environment.checks.findings import Case, NotApplicable, ensure, short
from driftline.environment.checks.playing import MAX_TURNS, Said, ended, in_a_loop, play
from driftline.environment.contract import Task

BABBLE = 12
"""Characters of the alphabet that are said in one turn, to hear what is answered to nonsense."""
BABBLE_TURNS = 2


def covers(case: Case) -> None:
    """The alphabet has every character that goes into the context, and the text that ends a turn is one of them."""
    alphabet = case.family.alphabet
    if alphabet is None:
        raise NotApplicable("the family has no alphabet")
    stop = case.family.stop
    ensure(len(stop) == 1, f"stop is {stop!r}: where there is an alphabet, one character ends a turn")
    _covered(alphabet, "stop", [stop])
    for task in case.tasks:
        for whose, actions in _scripts(case, task, alphabet):
            _covered(alphabet, f"{whose} of task {task.id}", actions)
            said = in_a_loop(play(case, task, actions, max_turns=MAX_TURNS))
            _covered(alphabet, f"the prompt of task {task.id}", _texts(said[0]))
            for turn, answer in enumerate(said[1:], start=1):
                if not ended(answer):
                    _covered(alphabet, f"the answer to turn {turn} of {whose}, task {task.id}", _texts(answer))


def _scripts(case: Case, task: Task, alphabet: str) -> list[tuple[str, Sequence[str]]]:
    """What a policy says: what solves the task, what is demonstrated, and what an untrained one may."""
    nonsense = "".join(one for one in alphabet if one != case.family.stop)[:BABBLE]
    found = [
        ("the oracle", case.family.oracle(task)),
        ("the demonstration", case.family.demonstrate(task, Random(0))),
    ]
    return [*((whose, said) for whose, said in found if said is not None), ("nonsense", [nonsense] * BABBLE_TURNS)]


def _texts(said: Said) -> list[str]:
    """What goes into the context as text, and not as token ids."""
    return [content for _, content, *ids in said["messages"] if not ids]


def _covered(alphabet: str, where: str, texts: Iterable[str]) -> None:
    for text in texts:
        lacking = "".join(sorted(set(text) - set(alphabet)))
        ensure(not lacking, f"{where} has {short(lacking, 60)}, which the alphabet lacks: {short(text, 60)}")
