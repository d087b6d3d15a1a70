"""Which tasks to propose: windows of the generator's seeds, at levels of difficulty where the family has them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from driftline.environment import GradedFamily, Task, TaskFamily, shared, tasks_for, tasks_of_level
from driftline.errors import ConfigurationError
from driftline.refresh import learnability
from driftline.refresh.solving import SolveRate

SEED_BYTES = 6
EXPLORING_SHARE = 0.25
"""Share of the proposals that is spread over all levels alike."""

ASKED_BY = "options.window"
"""The refresh's parameter that says how many tasks a window asks for."""


@dataclass(frozen=True, slots=True)
class Window:
    """One call of the generator. Windows are independent of one another, so they may be worked on side by side."""

    environment: str
    seed: int
    count: int
    level: int | None = None
    """None: the generator's own mixture."""


def graded(family: TaskFamily) -> TypeGuard[GradedFamily]:
    """Whether the family generates tasks of a level that is asked for."""
    return isinstance(family, GradedFamily)


def windows(
    environment: str, seed: int, count: int, *, size: int, levels: Mapping[int, int] | None = None
) -> list[Window]:
    """Divide `count` proposals into windows of at most `size`.

    Args:
        environment: Versioned id of the family.
        seed: Of the refresh; another one gives other windows.
        count: Proposals, where no levels are given.
        size: Most proposals of a window.
        levels: Level -> proposals; None leaves the mixture to the generator.
    """
    wanted = sorted(levels.items()) if levels is not None else [(None, count)]
    found: list[Window] = []
    for level, proposals in wanted:
        for number, first in enumerate(range(0, proposals, size)):
            of_window = window_seed(environment, seed, level, number)
            found.append(Window(environment, of_window, min(size, proposals - first), level))
    return found


def window_seed(environment: str, seed: int, level: int | None, number: int) -> int:
    """The generator's seed of one window: another stream than a run's first tasks and the held-out ones."""
    text = f"propose:{environment}:{seed}:{level}:{number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")


def propose(family: TaskFamily, window: Window, asked_by: str = ASKED_BY) -> list[Task]:
    """What the family generates in a window; of a level that has not so many, the half, a quarter, and so on.

    Raises:
        ConfigurationError: It has not so many without levels, or none of the level; the message names the parameter,
            `asked_by`.
    """
    if window.level is None:
        return tasks_for(asked_by, family, window.seed, window.count)
    assert graded(family), f"{family.id} has no levels"
    count = window.count
    while True:
        try:
            return tasks_of_level(asked_by, window.environment, family, window.level, window.seed, count)
        except ConfigurationError:
            if count == 1:
                raise
            count //= 2


def spread(count: int, levels: int, rates: Mapping[int, SolveRate]) -> dict[int, int]:
    """How many proposals to make at each level: most where the most is learned.

    Args:
        count: Proposals in all.
        levels: Levels of the family.
        rates: Level -> solve rate, where it is known.

    Returns:
        Level -> proposals, none of them 0; all levels alike where nothing is known.
    """
    known = [rates.get(level, SolveRate()) for level in range(levels)]
    worth = learnability.of_levels([(rate.attempts, rate.solved) for rate in known])
    total = math.fsum(worth)
    found = shared(count, [(1 - EXPLORING_SHARE) * one / total + EXPLORING_SHARE / levels for one in worth])
    return {level: proposals for level, proposals in enumerate(found) if proposals}
