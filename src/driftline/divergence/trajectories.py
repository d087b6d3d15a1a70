"""How divergence is spread over trajectories: a batch whose mean is small may hold a few that are far off. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from driftline.divergence.estimators import quantiles
from driftline.measured import K3_SHARES, RATIO_SHARES, DivergenceSummary


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles over trajectories, each of which counts once, however long it is."""

    k3_nats: tuple[float, ...]
    """Of k3 a token, at `K3_SHARES`."""
    geometric_mean_ratio: tuple[float, ...]
    """Of the geometric mean of the tokens' ratios, at `RATIO_SHARES`."""
    sequence_ratio: tuple[float, ...]
    """Of the product of the tokens' ratios, within e^-20 and e^20, at `RATIO_SHARES`."""


def spread(trajectories: Sequence[DivergenceSummary]) -> Spread | None:
    """The quantiles over some trajectories; None where none of them has a sampled token."""
    found = [one for one in trajectories if one.tokens]
    if not found:
        return None

    def over(values: Sequence[float], shares: tuple[float, ...]) -> tuple[float, ...]:
        return quantiles(torch.tensor(values, dtype=torch.float64), shares)

    return Spread(
        k3_nats=over([one.k3 for one in found], K3_SHARES),
        geometric_mean_ratio=over([one.geometric_mean_ratio for one in found], RATIO_SHARES),
        sequence_ratio=over([one.sequence_ratio for one in found], RATIO_SHARES),
    )
