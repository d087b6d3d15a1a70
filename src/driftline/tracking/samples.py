"""Means of samples, and whether two of them differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGEST_Z = 1e6
"""What stands for infinity, which JSON has no word for."""


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of no values."""
    return math.fsum(values) / len(values) if values else 0.0


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean by weights that are not negative; 0 where they are all 0."""
    total = math.fsum(weights)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def welch(one: Sequence[float], other: Sequence[float], fewest: int) -> float:
    """Standard errors between the means of two samples of unequal variance.

    Args:
        one: A sample.
        other: The sample to compare it with.
        fewest: Values that either must have; below that nothing is said, which is 0.
    """
    if min(len(one), len(other)) < fewest:
        return 0.0
    difference = mean(one) - mean(other)
    error = math.sqrt(deviation(one) ** 2 / len(one) + deviation(other) ** 2 / len(other))
    if error == 0.0:
        return math.copysign(LARGEST_Z, difference) if difference else 0.0
    return difference / error
