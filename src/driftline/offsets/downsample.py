"""Long series in few points. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


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


def gathered(values: NDArray[np.float64], into: Sequence[range], *, peaks: bool = False) -> NDArray[np.float64]:
    """One row for each bucket: the mean of what was measured, or the largest.

    Args:
        values: (steps, names); what is not finite was not measured.
        into: Buckets that cover the steps, at least one.
        peaks: Whether to take the largest.

    Returns:
        (buckets, names); NaN where nothing was measured.
    """
    starts = [bucket[0] for bucket in into]
    measured = np.isfinite(values)
    counts = np.add.reduceat(measured.astype(np.float64), starts, axis=0)
    if peaks:
        found = np.maximum.reduceat(np.where(measured, values, -np.inf), starts, axis=0)
    else:
        found = np.add.reduceat(np.where(measured, values, 0.0), starts, axis=0) / np.maximum(counts, 1.0)
    return np.where(counts > 0, found, np.nan)


def column(values: NDArray[np.float64], index: int) -> list[float | None]:
    """A column as it is answered."""
    return [value if math.isfinite(value) else None for value in values[:, index].tolist()]
