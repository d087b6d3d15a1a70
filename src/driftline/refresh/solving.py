"""How often the policy solves a task, from what its episodes led to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

LevelT = TypeVar("LevelT", int, tuple[str, int])
"""A level of one environment, or an environment and a level of it."""


@dataclass(frozen=True, slots=True)
class SolveRate:
    """Valid episodes of a task, or of several, and how many of them succeeded."""

    attempts: int = 0
    solved: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.solved <= self.attempts, f"{self.solved} of {self.attempts} solved"

    def __add__(self, other: SolveRate) -> SolveRate:
        return SolveRate(self.attempts + other.attempts, self.solved + other.solved)

    @property
    def share(self) -> float:
        """In [0, 1]; 0 of none."""
        return self.solved / self.attempts if self.attempts else 0.0


def by_level(rates: Mapping[str, SolveRate], levels: Mapping[str, LevelT]) -> dict[LevelT, SolveRate]:
    """Level -> solve rate over the tasks whose level is known.

    Args:
        rates: Task id -> solve rate.
        levels: Task id -> level; with its environment, where tasks of several are among them.
    """
    found: dict[LevelT, SolveRate] = {}
    for task_id, rate in rates.items():
        if task_id in levels:
            found[levels[task_id]] = found.get(levels[task_id], SolveRate()) + rate
    return dict(sorted(found.items()))


def merged(*sources: Mapping[str, SolveRate]) -> dict[str, SolveRate]:
    """Solve rates of several sources, added up by task."""
    found: dict[str, SolveRate] = {}
    for source in sources:
        for task_id, rate in source.items():
            found[task_id] = found.get(task_id, SolveRate()) + rate
    return dict(sorted(found.items()))
