"""`pointer_chase/v1` whose files take time to read: lognormal, as tools do. Imports neither torch nor the store."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from driftline.environment import StepResult
from environments.pointer_chase import PointerChase
from environments.pointer_chase.game import ANSWER, PointerChaseGame

MEDIAN_S, SIGMA = 0.02, 0.9
"""Of a read; an answer is judged at once. The mean is 0.03 s."""

_numbers: Iterator[int] = itertools.count()


class WaitingGame(PointerChaseGame):
    """A game whose reads wait."""

    def __init__(self, max_turns: int, rng: Random) -> None:
        super().__init__(max_turns)
        self._rng = rng

    async def step(self, action: str) -> StepResult:
        """Take one turn."""
        if not ANSWER.fullmatch(action.removesuffix("\n")):
            await asyncio.sleep(self._rng.lognormvariate(math.log(MEDIAN_S), SIGMA))
        return await super().step(action)


def game(max_turns: int, *, waits: bool) -> PointerChaseGame:
    """A game, with waits of its own draws or without."""
    return WaitingGame(max_turns, Random(next(_numbers))) if waits else PointerChaseGame(max_turns)


@dataclass(frozen=True)
class WaitingChase(PointerChase):
    """The family: the tasks, and the id, of `pointer_chase/v1`."""

    def make(self, *, max_turns: int = 20) -> PointerChaseGame:
        """Make a game that waits."""
        return game(max_turns, waits=True)
