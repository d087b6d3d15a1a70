"""Divergence between the behaviour policy and the current one, estimated on sampled tokens.

Every estimate is over tokens that the behaviour policy sampled. With ratio r = current / behaviour of one token:

    k1 = -ln r            unbiased for KL(behaviour || current), may be negative        nats
    k2 = (ln r)^2 / 2     biased, low variance                                          nats
    k3 = r - 1 - ln r     unbiased, never negative                                      nats
    total variation       mean |r - 1| / 2                                              [0, ...)
    chi-square            mean r^2 - 1, of current against behaviour                    [-1, ...)
    effective sample size (sum r)^2 / sum r^2, as a fraction of the tokens              (0, 1]

(k1-k3: J. Schulman, "Approximating KL divergence", 2020.) The estimates are functions of five sums, so that they
add up over micro-batches and ranks: `divergence_sums` makes them, `summarise` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SUMS = 6
"""Length of the vector of `divergence_sums`."""


def k1(log_ratio_T: Tensor) -> Tensor:
    """Per-token k1 in nats, `[T]`, of current/behaviour log ratios `[T]`."""
    return -log_ratio_T


def k2(log_ratio_T: Tensor) -> Tensor:
    """Per-token k2 in nats, `[T]`; never negative."""
    return log_ratio_T.square() / 2


def k3(log_ratio_T: Tensor) -> Tensor:
    """Per-token k3 in nats, `[T]`; never negative."""
    return torch.expm1(log_ratio_T) - log_ratio_T


def divergence_sums(log_ratio_T: Tensor) -> Tensor:
    """Return what the estimates are made of, `[SUMS]` in float64; sums of parts add up to the sum of the whole.

    Args:
        log_ratio_T: Current minus behaviour log-probability of each sampled token, `[T]`, nats.
    """
    log_ratio = log_ratio_T.detach().double()
    ratio = log_ratio.exp()
    return torch.stack(
        [
            torch.tensor(float(log_ratio.numel()), dtype=torch.float64, device=log_ratio.device),
            log_ratio.sum(),
            k2(log_ratio).sum(),
            ratio.sum(),
            ratio.square().sum(),
            (ratio - 1).abs().sum(),
        ]
    )


@dataclass(frozen=True, slots=True)
class DivergenceSummary:
    """Estimates over `tokens` sampled tokens; `k1`, `k2`, `k3` in nats a token."""

    tokens: int
    k1: float
    k2: float
    k3: float
    total_variation: float
    chi_square: float
    ess_fraction: float
    ratio_mean: float


def summarise(sums: Tensor) -> DivergenceSummary:
    """Read the estimates from `[SUMS]`. Without tokens the two policies count as equal."""
    tokens, log_ratio, squared_half, ratio, ratio_squared, deviation = (float(value) for value in sums)
    if tokens == 0:
        return DivergenceSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    return DivergenceSummary(
        tokens=int(tokens),
        k1=-log_ratio / tokens,
        k2=squared_half / tokens,
        k3=max(0.0, (ratio - tokens - log_ratio) / tokens),
        total_variation=deviation / tokens / 2,
        chi_square=ratio_squared / tokens - 1,
        ess_fraction=ratio * ratio / (tokens * ratio_squared),
        ratio_mean=ratio / tokens,
    )


def effective_sample_size(weights_N: Tensor) -> Tensor:
    """Effective number of samples of weights `[N]`, a scalar in (0, N]; 0 when all weights are 0."""
    squares = weights_N.square().sum()
    return torch.where(squares > 0, weights_N.sum().square() / squares, torch.zeros_like(squares))


def sequence_ratio(log_ratio_T: Tensor) -> Tensor:
    """Ratio of the whole sequence: the product of its token ratios, a scalar."""
    return log_ratio_T.sum().exp()


def geometric_mean_ratio(log_ratio_T: Tensor) -> Tensor:
    """Length-normalised ratio of a sequence: the geometric mean of its token ratios, a scalar."""
    return log_ratio_T.mean().exp()


def exact_kl(behaviour_V: Tensor, current_V: Tensor) -> Tensor:
    """KL(behaviour || current) in nats of two probability vectors `[..., V]`; 0 ln 0 counts as 0."""
    return (torch.xlogy(behaviour_V, behaviour_V) - torch.xlogy(behaviour_V, current_V)).sum(-1)


def exact_total_variation(behaviour_V: Tensor, current_V: Tensor) -> Tensor:
    """Total variation in [0, 1] of two probability vectors `[..., V]`."""
    return (behaviour_V - current_V).abs().sum(-1) / 2


def exact_chi_square(behaviour_V: Tensor, current_V: Tensor) -> Tensor:
    """Chi-square of current against behaviour, two probability vectors `[..., V]`; never negative."""
    return ((current_V - behaviour_V).square() / behaviour_V).sum(-1)
