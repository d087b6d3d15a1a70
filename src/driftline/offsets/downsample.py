"""Long series in few points. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise


def buckets(count: int, points: int) -> list[range]:
    """At most `points` runs of consecutive indexes that cover `count`, in order, as even as can be.

    The last index is always in a bucket of its own, so that the newest value is shown as it is.
    """
    if count <= points or points < 2:
        return [range(i, i + 1) for i in range(count)] if count <= points else [range(count)]
    edges = [round(i * (count - 1) / (points - 1)) for i in range(points)]
    return [*(range(a, b) for a, b in pairwise(edges)), range(count - 1, count)]


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured; None where nothing was."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    return sum(found) / len(found) if found else None


def largest(values: Iterable[float | None]) -> float | None:
    """Largest of what was measured; None where nothing was."""
    return max((value for value in values if value is not None and math.isfinite(value)), default=None)


def gathered(values: Sequence[float | None], into: Sequence[range], *, peaks: bool = False) -> list[float | None]:
    """One value for each bucket: the mean, or the largest."""
    take = largest if peaks else mean
    return [take(values[i] for i in bucket) for bucket in into]
