"""Several families as one, such as `resolve("pointer_chase/v1 * 3 + arithmetic/v1")`.

A mixture is a family whose tasks are those of its parts, in proportion to the weights in its name. Each keeps the
environment id of its own part, so whoever counts by environment counts by part. It can be played as it is; a cell
plays each part where and as that family wants to be played (`parts_of`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from driftline.environment.abilities import GradedFamily
from driftline.environment.contract import Environment, Message, StepResult, Task, TaskFamily
from driftline.errors import ConfigurationError

_PLUS, _TIMES = (re.compile(rf"(?:^|\s){re.escape(sign)}(?:\s|$)") for sign in "+*")
"""Between spaces, since an id may hold an address."""


@dataclass(frozen=True, slots=True)
class Part:
    """One family of a mixture."""

    name: str
    """As `resolve` knows it."""
    family: TaskFamily
    share: float
    """Of the tasks; those of a mixture sum to 1."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A family whose tasks are those of its parts."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Refuse an environment that is there twice."""
        ids = [part.family.id for part in self.parts]
        double = next((one for one in ids if ids.count(one) > 1), None)
        if double is not None:
            raise ConfigurationError(f"{double!r} is in the mixture twice: name it once, with its share")

    @property
    def id(self) -> str:
        """The ids of the parts; no task has it."""
        return " + ".join(part.family.id for part in self.parts)

    @property
    def alphabet(self) -> str | None:
        """All characters of the parts; None if one of them has no alphabet."""
        found = [part.family.alphabet for part in self.parts]
        return None if None in found else "".join(dict.fromkeys("".join(one or "" for one in found)))

    @property
    def stop(self) -> str:
        """The text that ends a turn in all parts.

        Raises:
            ConfigurationError: They do not agree.
        """
        stops = {part.family.stop for part in self.parts}
        if len(stops) > 1:
            raise ConfigurationError(f"{self.id} ends turns by {sorted(stops)}: mix families that end them alike")
        return stops.pop()

    def generate(self, seed: int, count: int) -> list[Task]:
        """Tasks of all parts by their shares, in turn: of any run of them each part has its share, nearly."""
        counts = shared(count, [part.share for part in self.parts])
        drawn = [
            ((number + 0.5) / of_part, place, task)
            for place, (part, of_part) in enumerate(zip(self.parts, counts, strict=True))
            if of_part
            for number, task in enumerate(part.family.generate(seed, of_part))
        ]
        return [task for _, _, task in sorted(drawn, key=lambda one: one[:2])]

    def make(self, *, max_turns: int = 20) -> Environment:
        """Make an environment that plays tasks of all parts."""
        return _AnyPart(self, max_turns)

    def oracle(self, task: Task) -> Sequence[str] | None:
        """Of the task's own family."""
        return self.of(task.environment).family.oracle(task)

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """Of the task's own family."""
        return self.of(task.environment).family.demonstrate(task, rng)

    def of(self, environment: str) -> Part:
        """The part that an environment id belongs to.

        Raises:
            ConfigurationError: It belongs to none.
        """
        for part in self.parts:
            if part.family.id == environment:
                return part
        raise ConfigurationError(f"environment {environment!r} is no part of {self.id}: play it with its own family")


class _AnyPart:
    """An environment of the part that its task belongs to."""

    def __init__(self, mixture: Mixture, max_turns: int) -> None:
        self._mixture = mixture
        self._max_turns = max_turns
        self._playing: Environment | None = None

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        await self.close()
        self._playing = self._mixture.of(task.environment).family.make(max_turns=self._max_turns)
        return await self._playing.reset(task, seed)

    async def step(self, action: str) -> StepResult:
        assert self._playing is not None, "reset was not awaited"
        return await self._playing.step(action)

    async def close(self) -> None:
        playing, self._playing = self._playing, None
        if playing is not None:
            await playing.close()


def parts_of(family: TaskFamily, name: str) -> tuple[Part, ...]:
    """The parts of a family that was resolved by a name: its own, or the family itself."""
    return family.parts if isinstance(family, Mixture) else (Part(name, family, 1.0),)


def family_named(family: TaskFamily, name: str) -> TaskFamily:
    """The part of a mixture that has a name; the family itself where none has."""
    return next((part.family for part in parts_of(family, "") if part.name == name), family)


def level_of(family: TaskFamily, task: Task) -> int | None:
    """The level of difficulty of a task of a family, or of a part of it; None where nobody tells."""
    of_task = (part.family for part in parts_of(family, "") if part.family.id == task.environment)
    found = next(of_task, family)
    return found.level_of(task) if isinstance(found, GradedFamily) else None


def named_parts(name: str) -> list[tuple[str, float]]:
    """The names in the name of a family, each with its share; one of 1 where it is no mixture.

    Raises:
        ConfigurationError: It cannot be read, or a share is not above 0.
    """
    if not _PLUS.search(name) and not _TIMES.search(name):
        return [(name, 1.0)]
    found = [_weighed(part.strip(), name) for part in _PLUS.split(name)]
    total = math.fsum(weight for _, weight in found)
    return [(part, weight / total) for part, weight in found]


def shared(count: int, shares: Sequence[float]) -> list[int]:
    """Divide `count` by shares that sum to 1: whole numbers, each less than one off, that sum to it."""
    exact = [share * count for share in shares]
    found = [math.floor(one) for one in exact]
    by_rest = sorted(range(len(shares)), key=lambda place: (found[place] - exact[place], place))
    for place in by_rest[: count - sum(found)]:
        found[place] += 1
    return found


def _weighed(part: str, whole: str) -> tuple[str, float]:
    name, *weight = (piece.strip() for piece in _TIMES.split(part))
    try:
        [share] = [float(one) for one in weight] or [1.0]
    except ValueError:
        share = math.nan
    if not name or not (0 < share < math.inf):
        raise ConfigurationError(
            f"environment.id: {whole!r} is no mixture ({part!r}): "
            "write it as 'pointer_chase/v1 * 3 + arithmetic/v1', with the spaces"
        )
    return name, share
