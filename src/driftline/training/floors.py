"""The floor of each cell: k3 of members that the same weights generated and scored, engine against trainer. Pure.

A cell that was started again has another engine, of which the floor of the one before says nothing. So a floor is of
one incarnation of its cell, the newest that is known to have generated something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from driftline.measured import DivergenceSummary, pooled
from driftline.records import Group, Trajectory

KeyT = TypeVar("KeyT", int, str)


@dataclass(frozen=True, slots=True)
class Floors:
    """Those of some groups."""

    by_cell: Mapping[str, DivergenceSummary] = field(default_factory=dict[str, DivergenceSummary])
    incarnations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cell -> incarnation that its floor is of."""


def floors_of(measured: Iterable[tuple[Group, Trajectory, DivergenceSummary]]) -> Floors:
    """The floor of each cell, of the incarnation alone that wrote its newest object among these.

    Args:
        measured: Members, all of whose tokens are of lag 0, with their groups.
    """
    found = [one for one in measured if one[2].tokens]
    newest: dict[str, tuple[str, str]] = {}
    for group, member, _ in found:
        newest[member.cell] = max(newest.get(member.cell, ("", "")), (group.key, group.incarnation))
    incarnations = {cell: incarnation for cell, (_, incarnation) in sorted(newest.items())}
    own = ((member.cell, floor) for group, member, floor in found if group.incarnation == incarnations[member.cell])
    return Floors(divided(own), incarnations)


class CellFloor:
    """What the newest incarnation of one cell showed in the last steps in which it was measured."""

    def __init__(self, incarnation: str, window_steps: int) -> None:
        """Begin with nothing of an incarnation."""
        self._incarnation = incarnation
        self._earlier: frozenset[str] = frozenset()
        self._found: deque[tuple[int, DivergenceSummary]] = deque(maxlen=window_steps)

    @property
    def last_step(self) -> int:
        """The step in which it was measured last; there is one."""
        return self._found[-1][0]

    @property
    def pooled(self) -> DivergenceSummary:
        """Over those steps."""
        return pooled(floor for _, floor in self._found)

    def follow(self, incarnation: str, step: int, floor: DivergenceSummary) -> None:
        """Take in what a step measured. Groups of an incarnation may come in after those of its successor."""
        if incarnation in self._earlier:
            return
        if incarnation != self._incarnation:
            self._earlier |= {self._incarnation}
            self._incarnation = incarnation
            self._found.clear()
        self._found.append((step, floor))

    def instead(self, incarnation: str, floor: DivergenceSummary) -> CellFloor:
        """A floor of the same cell that stands instead of those of the last steps."""
        found = CellFloor(self._incarnation, 1)
        found._earlier = self._earlier
        found.follow(incarnation, 0, floor)
        return found

    def outdated(self, incarnation: str) -> bool:
        """Whether it is of an engine whose place `incarnation`, which the cell's report names, has taken."""
        return bool(self._incarnation) and incarnation not in (self._incarnation, *self._earlier)


def divided(parts: Iterable[tuple[KeyT, DivergenceSummary]]) -> dict[KeyT, DivergenceSummary]:
    """Pool by key, in the keys' order."""
    found: dict[KeyT, list[DivergenceSummary]] = {}
    for key, summary in parts:
        if summary.tokens:
            found.setdefault(key, []).append(summary)
    return {key: pooled(found[key]) for key in sorted(found)}
