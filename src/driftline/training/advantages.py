"""Group advantages: how much better a member did than its group.

    grpo             (r - mean) / sample std          DeepSeekMath (2402.03300), section 4.1.2; n - 1 in the variance
    grpo_population  (r - mean) / population std
    dr_grpo          r - mean                         "Understanding R1-Zero-like training" (2503.20783), section 3.2
    rloo             r - mean of the others           "Back to basics" (2402.14740), section 3.1
    maxrl            (r - mean) / mean

No epsilon in any denominator: a group whose valid members all have the same reward (up to the rounding of their
own sums), or with one valid member, gets zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_ROUNDING = 1e-9
"""Relative difference below which two rewards are the same number, summed in another order."""

ADVANTAGES = ("grpo", "grpo_population", "dr_grpo", "rloo", "maxrl")


def has_signal(rewards_G: Tensor, valid_G: Tensor) -> bool:
    """Whether a group teaches anything: at least two valid members, with different rewards."""
    return rewards_differ([float(reward) for reward in rewards_G[valid_G.bool()]])


def rewards_differ(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group's valid members teach anything: there are two or more, and they differ."""
    if len(rewards) < 2 or not math.isfinite(sum(rewards)):
        return False
    return max(rewards) - min(rewards) > _ROUNDING * max(map(abs, rewards))


def group_advantages(rewards_G: Tensor, valid_G: Tensor, kind: str = "grpo") -> Tensor:
    """Advantages of one group's members.

    Args:
        rewards_G: Rewards `[G]`; those of invalid members are not read (they may be NaN).
        valid_G: Which members count, `[G]`; the others are outside all statistics and get 0.
        kind: One of `ADVANTAGES`.

    Returns:
        Advantages `[G]`, float64. They sum to zero.

    Raises:
        ValueError: `kind` is unknown.
    """
    if kind not in ADVANTAGES:
        raise ValueError(f"unknown advantage {kind!r}: one of {', '.join(ADVANTAGES)}")
    advantages_G = torch.zeros(rewards_G.shape, dtype=torch.float64)
    if not has_signal(rewards_G, valid_G):
        return advantages_G
    valid = valid_G.bool()
    rewards = rewards_G[valid].double()
    centred = rewards - rewards.mean()
    advantages_G[valid] = centred / _scale(rewards, kind)
    return advantages_G


def _scale(rewards: Tensor, kind: str) -> Tensor:
    """The positive number that the centred rewards are divided by."""
    n = rewards.numel()
    match kind:
        case "grpo":
            return rewards.std(correction=1)
        case "grpo_population":
            return rewards.std(correction=0)
        case "rloo":  # r - (sum - r) / (n - 1) == (r - mean) * n / (n - 1)
            return torch.tensor((n - 1) / n, dtype=torch.float64)
        case "maxrl" if rewards.mean() > 0:
            return rewards.mean()
        case "maxrl":
            return torch.tensor(torch.inf, dtype=torch.float64)
        case _:
            return torch.ones((), dtype=torch.float64)
