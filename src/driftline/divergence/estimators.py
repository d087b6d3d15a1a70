"""Divergence between the behaviour policy and the current one, estimated on sampled tokens.

Every estimate is over tokens that the behaviour policy sampled. With ratio r = current / behaviour of one token:

    k1 = -ln r            unbiased for KL(behaviour || current), may be negative        nats
    k2 = (ln r)^2 / 2     biased, low variance                                          nats
    k3 = r - 1 - ln r     unbiased, never negative                                      nats
    total variation       mean |r - 1| / 2, unbiased                                    [0, ...)
    chi-square            mean r^2 - 1, unbiased, of current against behaviour          [-1, ...)
    effective sample size (sum r)^2 / sum r^2, as a fraction of the tokens              (0, 1]

(k1-k3: J. Schulman, "Approximating KL divergence", 2020; effective sample size: A. Kong, 1992. "Unbiased" holds
where the current policy gives nothing to tokens that the behaviour policy cannot sample; by enumeration in
`tests/golden/test_exact_expectations.py`.)

Log ratios are clamped to +-`LOG_RATIO_LIMIT` before they are exponentiated, and nowhere else: k1 and k2 see them as
they are, and so does k3 until they would outgrow the clamped exponential (`FURTHEST_LOG_RATIO`). The estimates are
functions of sums over tokens, so that they add up over micro-batches, ranks, lags and environments: `token_terms`
makes the summands, `summarise` reads their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from driftline.measured import LOG_RATIO_LIMIT as LOG_RATIO_LIMIT
from driftline.measured import NOTHING as NOTHING
from driftline.measured import DivergenceSummary as DivergenceSummary

FURTHEST_LOG_RATIO = math.expm1(LOG_RATIO_LIMIT) / 2
"""Log ratios above it, as of tokens that the behaviour policy masked by a huge negative logit, count as it to k3."""
SUMS = 8
"""Length of the vector of `divergence_sums`."""


def ratio(log_ratio_T: Tensor) -> Tensor:
    """Ratios `[T]` of log ratios `[T]` in nats, within e^-20 and e^20."""
    return log_ratio_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def k1(log_ratio_T: Tensor) -> Tensor:
    """Per-token k1 in nats, `[T]`, of current/behaviour log ratios `[T]`."""
    return -log_ratio_T


def k2(log_ratio_T: Tensor) -> Tensor:
    """Per-token k2 in nats, `[T]`; never negative."""
    return log_ratio_T.square() / 2


def k3(log_ratio_T: Tensor) -> Tensor:
    """Per-token k3 in nats, `[T]`; never negative, however large the log ratio is."""
    exponential_T = torch.expm1(log_ratio_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return exponential_T - log_ratio_T.clamp(max=FURTHEST_LOG_RATIO)


def token_terms(log_ratio_T: Tensor) -> Tensor:
    """What each token adds to the sums that the estimates are made of, `[T, SUMS]` in float64.

    Args:
        log_ratio_T: Current minus behaviour log-probability of each sampled token, `[T]`, nats.
    """
    log_ratio = log_ratio_T.detach().double()
    ratios, k3_T = ratio(log_ratio), k3(log_ratio)
    terms = [
        torch.ones_like(log_ratio),
        log_ratio,
        k2(log_ratio),
        k3_T,
        k3_T.square(),
        ratios,
        ratios.square(),
        (ratios - 1).abs(),
    ]
    return torch.stack(terms, -1)


def divergence_sums(log_ratio_T: Tensor) -> Tensor:
    """Return what the estimates are made of, `[SUMS]` in float64; sums of parts add up to the sum of the whole.

    Args:
        log_ratio_T: Current minus behaviour log-probability of each sampled token, `[T]`, nats.
    """
    return token_terms(log_ratio_T).sum(0)


def summarise(sums: Tensor | Sequence[float]) -> DivergenceSummary:
    """Read the estimates from `[SUMS]`; `NOTHING` without tokens."""
    tokens, log_ratio, k2_sum, k3_sum, k3_squares, ratios, squares, deviation = (float(value) for value in sums)
    if tokens == 0:
        return NOTHING
    variance = max(0.0, k3_squares / tokens - (k3_sum / tokens) ** 2)
    return DivergenceSummary(
        tokens=int(tokens),
        k1=-log_ratio / tokens,
        k2=k2_sum / tokens,
        k3=k3_sum / tokens,
        total_variation=deviation / tokens / 2,
        chi_square=squares / tokens - 1,
        ess_fraction=min(1.0, ratios * ratios / (tokens * squares)),
        ratio_mean=ratios / tokens,
        k3_error=math.sqrt(variance / (tokens - 1)) if tokens > 1 else 0.0,
    )


def effective_sample_size(weights_N: Tensor) -> Tensor:
    """Effective number of samples of weights `[N]`, a scalar in (0, N]; 0 when all weights are 0."""
    squares = weights_N.square().sum()
    return torch.where(squares > 0, weights_N.sum().square() / squares, torch.zeros_like(squares))


def sequence_ratio(log_ratio_T: Tensor) -> Tensor:
    """Ratio of the whole sequence: the product of its token ratios, a scalar."""
    return ratio(log_ratio_T.sum())


def geometric_mean_ratio(log_ratio_T: Tensor) -> Tensor:
    """Length-normalised ratio of a sequence: the geometric mean of its token ratios, a scalar."""
    return ratio(log_ratio_T.mean())


def quantiles(values_N: Tensor, shares: Sequence[float]) -> tuple[float, ...]:
    """Quantiles of values `[N]`, such as log ratios or the k3 of trajectories; interpolated. Zeros for no values.

    Args:
        values_N: In any order.
        shares: In [0, 1]; 0.5 is the median.
    """
    if values_N.numel() == 0:
        return (0.0,) * len(shares)
    found = values_N.detach().double().quantile(torch.tensor(shares, dtype=torch.float64, device=values_N.device))
    return tuple(float(value) for value in found)


def exact_kl(behaviour_V: Tensor, current_V: Tensor) -> Tensor:
    """KL(behaviour || current) in nats of two probability vectors `[..., V]`; 0 ln 0 counts as 0."""
    return (torch.xlogy(behaviour_V, behaviour_V) - torch.xlogy(behaviour_V, current_V)).sum(-1)


def exact_total_variation(behaviour_V: Tensor, current_V: Tensor) -> Tensor:
    """Total variation in [0, 1] of two probability vectors `[..., V]`."""
    return (behaviour_V - current_V).abs().sum(-1) / 2


def exact_chi_square(behaviour_V: Tensor, current_V: Tensor) -> Tensor:
    """Chi-square of current against behaviour, two probability vectors `[..., V]`; never negative."""
    return ((current_V - behaviour_V).square() / behaviour_V).sum(-1)
