"""Importance weights: from the policy that sampled a token to the one it is used for.

Ratios are proximal (or current) over behaviour. Everything is pure, detached, and never raises a weight; tokens of
several sequences may lie side by side, with `sequence_T` saying whose each one is. A `Correction` is a value:

    none                 1
    token_truncated      min(r, cap)                            token-level truncated importance sampling
    sequence_truncated   min(product of the sequence's r, cap)  "When Speed Kills Stability" (Liu et al., 2025)
    icepop               r, or 0 outside [low, high]            Ring-1T (2510.18855), section 3.2
    geometric_rejection  min(r, cap), or 0 for sequences whose geometric mean lies outside [low, high]

Token truncation: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al., 2025), after
IMPALA (1802.01561), section 4.1. Geometric-mean rejection: as `sequence_truncated`'s source. What each does to the
expected gradient is in `docs/divergence.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from driftline.divergence.estimators import ratio

CorrectionKind = Literal["none", "token_truncated", "sequence_truncated", "icepop", "geometric_rejection"]


@dataclass(frozen=True, slots=True)
class Correction:
    """Which weights a loss gives its tokens."""

    kind: CorrectionKind = "token_truncated"
    cap: float = 2.0
    """Largest weight; read by the truncating kinds and by `geometric_rejection`."""
    low: float = 0.5
    high: float = 5.0
    """Band outside which tokens (`icepop`) or sequences (`geometric_rejection`) are masked."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of some tokens, all `[T]` and detached."""

    raw_T: Tensor
    """The token's own ratio."""
    applied_T: Tensor
    masked_T: Tensor
    """bool: masked by the correction, so that the applied weight is 0."""


def importance_weights(log_ratio_T: Tensor, sequence_T: Tensor, correction: Correction) -> Weights:
    """Weights of tokens by a correction.

    Args:
        log_ratio_T: Proximal minus behaviour log-probability, `[T]`, nats, of whole sequences.
        sequence_T: int64: which sequence each token belongs to; numbers from 0 on, gaps allowed.
        correction: Which.
    """
    log_ratio_T = log_ratio_T.detach()
    raw_T = ratio(log_ratio_T)
    masked_T = torch.zeros_like(raw_T, dtype=torch.bool)
    match correction.kind:
        case "none":
            applied_T = torch.ones_like(raw_T)
        case "token_truncated":
            applied_T = token_truncated(raw_T, correction.cap)
        case "sequence_truncated":
            applied_T = ratio(sequence_totals(log_ratio_T, sequence_T)).clamp(max=correction.cap)
        case "icepop":
            applied_T = icepop(raw_T, correction.low, correction.high)
            masked_T = applied_T == 0
        case "geometric_rejection":
            mean_T = ratio(sequence_means(log_ratio_T, sequence_T))
            masked_T = (mean_T < correction.low) | (mean_T > correction.high)
            applied_T = token_truncated(raw_T, correction.cap).masked_fill(masked_T, 0.0)
    return Weights(raw_T, applied_T, masked_T)


def token_truncated(ratio_T: Tensor, cap: float) -> Tensor:
    """Token-level truncated importance weights `[T]`: each ratio, at most `cap`."""
    return ratio_T.clamp(max=cap)


def sequence_truncated(ratio_T: Tensor, cap: float) -> Tensor:
    """One weight for a sequence, a scalar: the product of its token ratios, at most `cap`."""
    return ratio(ratio_T.log().sum()).clamp(max=cap)


def geometric_mean(ratio_T: Tensor) -> Tensor:
    """Length-normalised weight of a sequence, a scalar: the geometric mean of its token ratios."""
    return ratio(ratio_T.log().mean())


def icepop(ratio_T: Tensor, low: float, high: float) -> Tensor:
    """Ratios `[T]` inside [`low`, `high`] unchanged, those outside masked to 0."""
    inside = (ratio_T >= low) & (ratio_T <= high)
    return torch.where(inside, ratio_T, torch.zeros_like(ratio_T))


def out_of_band(ratio_T: Tensor, low: float, high: float) -> Tensor:
    """Share of the tokens that `icepop` masks, a scalar in [0, 1]."""
    return ((ratio_T < low) | (ratio_T > high)).double().mean()


def negative_sequence_mask(
    log_ratio_T: Tensor, advantage_T: Tensor, sequence_T: Tensor, threshold_nats: float
) -> Tensor:
    """Off-policy sequence masking: which tokens are dropped, `[T]` bool.

    A sequence with a negative advantage is dropped when the mean of behaviour minus current log-probability (k1, a
    token) exceeds the threshold: what a distant policy got wrong is no lesson. DeepSeek-V3.2 (2512.02556), sec. 3.1.

    Args:
        log_ratio_T: Current minus behaviour log-probability, `[T]`, nats, of whole sequences.
        advantage_T: Advantages, `[T]`.
        sequence_T: Which sequence each token belongs to, `[T]`.
        threshold_nats: In nats a token.
    """
    k1_T = -sequence_means(log_ratio_T.detach(), sequence_T)
    return (advantage_T < 0) & (k1_T > threshold_nats)


def interpolated_proximal(
    current_T: Tensor,
    behaviour_T: Tensor,
    *,
    current_version: Tensor | int,
    proximal_version: Tensor | int,
    behaviour_version: Tensor | int,
) -> Tensor:
    """Log-probabilities of a proximal policy that nobody evaluates, `[T]`, nats, detached.

    Linear in log-probability between behaviour and current policy, by version; the behaviour policy itself where it
    is as new as the proximal one. A-3PO, as AReaL has it (`inclusionAI/AReaL`, docs/algorithms/prox_approx.md).

    Args:
        current_T: Log-probabilities under the current policy, `[T]`, nats.
        behaviour_T: As sampled, `[T]`, nats.
        current_version: Number of the current version, one or `[T]`.
        proximal_version: Number of the proximal version, one or `[T]`.
        behaviour_version: Number of the version that sampled each token, one or `[T]`.
    """
    behaviour = torch.as_tensor(behaviour_version, device=current_T.device).to(current_T.dtype)
    travelled = (torch.as_tensor(proximal_version, device=current_T.device) - behaviour).clamp(min=0)
    distance = (torch.as_tensor(current_version, device=current_T.device) - behaviour).clamp(min=1)
    share = (travelled / distance).clamp(max=1)
    return (behaviour_T + share * (current_T - behaviour_T)).detach()


def sequence_totals(values_T: Tensor, sequence_T: Tensor) -> Tensor:
    """For each token, the sum of the values of its sequence, `[T]`."""
    if values_T.numel() == 0:
        return values_T
    totals = values_T.new_zeros(int(sequence_T.max()) + 1).index_add(0, sequence_T, values_T)
    return totals[sequence_T]


def sequence_means(values_T: Tensor, sequence_T: Tensor) -> Tensor:
    """For each token, the mean of the values of its sequence, `[T]`."""
    return sequence_totals(values_T, sequence_T) / sequence_totals(torch.ones_like(values_T), sequence_T)
