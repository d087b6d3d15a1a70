"""Arithmetic on stretches of wall clock. Pure.

An interval is `(start, end)` in Unix seconds. Overlapping intervals of concurrent work count once, so that what is
busy and what is idle always add up to the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of `wall_s` seconds something was busy; `busy_s + idle_s == wall_s`."""

    busy_s: float
    wall_s: float

    @property
    def idle_s(self) -> float:
        """Seconds in which nothing ran."""
        return self.wall_s - self.busy_s

    @property
    def idle_share(self) -> float | None:
        """Idle seconds over the wall clock, in [0, 1]; None where no time has passed."""
        return self.idle_s / self.wall_s if self.wall_s > 0 else None


def union(intervals: Iterable[Interval], *, gap_s: float = 0.0) -> list[Interval]:
    """Disjoint, sorted intervals that cover the same instants.

    Args:
        intervals: In any order; empty and inverted ones are passed over.
        gap_s: Intervals closer than this are joined (for drawing).
    """
    joined: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if joined and start <= joined[-1][1] + gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def clip(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """The parts of the intervals that lie within `[start, end]`."""
    clipped = ((max(first, start), min(last, end)) for first, last in intervals)
    return [interval for interval in clipped if interval[1] > interval[0]]


def complement(intervals: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """The stretches of `[start, end]` that no interval covers."""
    gaps: list[Interval] = []
    cursor = start
    for first, last in union(clip(intervals, start, end)):
        if first > cursor:
            gaps.append((cursor, first))
        cursor = last
    return [*gaps, (cursor, end)] if end > cursor else gaps


def seconds(intervals: Sequence[Interval]) -> float:
    """Sum of the lengths."""
    return sum(end - start for start, end in intervals)


def usage(intervals: Iterable[Interval], start: float, end: float) -> Usage:
    """How busy `[start, end]` was: `0 <= busy_s <= wall_s`, whatever the intervals are."""
    wall_s = max(0.0, end - start)
    return Usage(min(seconds(union(clip(intervals, start, end))), wall_s), wall_s)
