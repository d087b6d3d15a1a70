"""Importance weights: from the policy that sampled a token to the one it is used for.

Ratios are proximal (or current) over behaviour. Every function is pure; none of them ever raises a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_truncated(ratio_T: Tensor, cap: float) -> Tensor:
    """Token-level truncated importance weights `[T]`: each ratio, at most `cap`."""
    return ratio_T.clamp(max=cap)


def sequence_truncated(ratio_T: Tensor, cap: float) -> Tensor:
    """One weight for a sequence, a scalar: the product of its token ratios, at most `cap`."""
    return ratio_T.log().sum().exp().clamp(max=cap)


def geometric_mean(ratio_T: Tensor) -> Tensor:
    """Length-normalised weight of a sequence, a scalar: the geometric mean of its token ratios."""
    return ratio_T.log().mean().exp()


def icepop(ratio_T: Tensor, low: float, high: float) -> Tensor:
    """Ratios `[T]` inside [`low`, `high`] unchanged, those outside masked to 0."""
    inside = (ratio_T >= low) & (ratio_T <= high)
    return torch.where(inside, ratio_T, torch.zeros_like(ratio_T))


def out_of_band(ratio_T: Tensor, low: float, high: float) -> Tensor:
    """Share of the tokens that `icepop` masks, a scalar in [0, 1]."""
    return ((ratio_T < low) | (ratio_T > high)).double().mean()
