"""The tasks of `pointer_chase/v1`, their oracle and their weak demonstrator.

A task is a handful of files. A file is named by two letters and holds the name of the next file or a two-digit
answer. The prompt names the first one; the policy reads on until it has found the answer:

    ?ab        prompt
    >ab        policy reads a file
    :cd        ... which names the next one
    >cd
    =42        ... which holds the answer
    =42        policy answers

Chains are geometric in length, so episodes have a long tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase, digits

from driftline.environment import Placement, Task
from driftline.errors import ConfigurationError
from environments.pointer_chase.game import PointerChaseGame, is_answer

CHAIN_STOP_PROBABILITY = 0.35
LONGEST_CHAIN = 16
"""Files on the longest chain; with the answer it takes 17 turns."""
DISTRACTORS = 4
"""Files of each task that are not on its chain."""
EARLY_GUESS_PROBABILITY = 0.35
SLIP_PROBABILITY = 0.08
"""How often a demonstrated turn is preceded by a slip, which the demonstrator mends. A policy that never saw one
mended would not find back from its own."""


@dataclass(frozen=True)
class PointerChase:
    """The family. With `<pad>` and `<eos>` its alphabet makes a vocabulary of 43."""

    id: str = "pointer_chase/v1"
    alphabet: str | None = "\n:=>?" + digits + ascii_lowercase
    stop: str = "\n"
    runs_in: Placement = "loop"

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks that differ in content."""
        rng = Random(f"{self.id}:{seed}")
        tasks: dict[str, Task] = {}
        while len(tasks) < count:
            task = _draw(self.id, rng)
            tasks.setdefault(task.id, task)
        return list(tasks.values())

    @property
    def levels(self) -> int:
        """One for each length of the chain: level 0 has one file on it."""
        return LONGEST_CHAIN

    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        """Return `count` tasks whose chains have `level + 1` files."""
        if not 0 <= level < self.levels:
            raise ConfigurationError(f"{self.id} has no level {level}: 0 to {self.levels - 1}")
        rng = Random(f"{self.id}:level {level}:{seed}")
        tasks: dict[str, Task] = {}
        while len(tasks) < count:
            task = _draw_of_length(self.id, rng, level + 1)
            tasks.setdefault(task.id, task)
        return list(tasks.values())

    def level_of(self, task: Task) -> int:
        """The level of a task."""
        return len(_follow(task)[0]) - 1

    def make(self, *, max_turns: int = 20) -> PointerChaseGame:
        """Make an environment that truncates after `max_turns` turns, with a reward of 0."""
        return PointerChaseGame(max_turns)

    def oracle(self, task: Task) -> Sequence[str]:
        """Read along the chain, then answer."""
        chain, answer = _follow(task)
        return [f">{name}" for name in chain] + [f"={answer}"]

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str]:
        """Like the oracle, with two bad habits: a guess instead of a read (35%), and slips of the pen (8%)."""
        chain, answer = _follow(task)
        actions: list[str] = []
        for name in chain:
            if rng.random() < EARLY_GUESS_PROBABILITY:
                return [*actions, f"={rng.randrange(100):02d}"]
            actions += [*_maybe_slip(name, rng), f">{name}"]
        return [*actions, *_maybe_slip(answer, rng), f"={answer}"]


def _maybe_slip(word: str, rng: Random) -> list[str]:
    """Now and then, a turn that the environment does not understand, or a read of some other file."""
    if rng.random() >= SLIP_PROBABILITY:
        return []
    letters = ascii_lowercase + digits
    slips = (word[0], word + word[1], word + word, rng.choice(letters) + word[1], word[0] + rng.choice(letters))
    return [f">{rng.choice(slips)}"]


def _draw(environment: str, rng: Random) -> Task:
    length = 1
    while length < LONGEST_CHAIN and rng.random() >= CHAIN_STOP_PROBABILITY:
        length += 1
    return _draw_of_length(environment, rng, length)


def _draw_of_length(environment: str, rng: Random, length: int) -> Task:
    names = _distinct_names(rng, length + DISTRACTORS)
    chain, distractors = names[:length], names[length:]
    files = dict(zip(chain, [*chain[1:], _answer(rng)], strict=True))
    for name in distractors:
        files[name] = _answer(rng) if rng.random() < CHAIN_STOP_PROBABILITY else rng.choice(names)
    return Task.create(environment, {"start": chain[0], "files": files})


def _distinct_names(rng: Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[rng.choice(ascii_lowercase) + rng.choice(ascii_lowercase)] = None
    return list(names)


def _answer(rng: Random) -> str:
    return f"{rng.randrange(100):02d}"


def _follow(task: Task) -> tuple[list[str], str]:
    """Return the files on the task's chain and the answer at its end."""
    files: dict[str, str] = task.payload["files"]
    content, chain = str(task.payload["start"]), list[str]()
    while not is_answer(content):
        chain.append(content)
        content = files[content]
    return chain, content
