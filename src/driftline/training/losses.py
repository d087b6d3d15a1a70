"""The policy loss, written once and pure.

Two ratios, never folded into one: current over proximal, which is differentiated and clipped (it limits the step),
and proximal over behaviour, a constant weight that is truncated (it corrects for who sampled the token). See
"Batch size-invariance for policy optimization" (2110.00641), section 3, and AReaL (2505.24298), section 5.2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    ratio_T: Tensor, advantage_T: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """PPO's clipped objective (to be maximised), with separate limits below and above.

    Args:
        ratio_T: Current over proximal probability, `[T]`.
        advantage_T: Advantages, `[T]`.
        clip_low: The ratio is clipped below at `1 - clip_low`.
        clip_high: The ratio is clipped above at `1 + clip_high`.
        dual_clip: Lower bound of the objective of a negative advantage, in units of the advantage; None is none.

    Returns:
        The objective of each token, `[T]`.
    """
    clipped_T = ratio_T.clamp(1 - clip_low, 1 + clip_high)
    objective_T = torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
    if dual_clip is None:
        return objective_T
    bounded_T = torch.maximum(objective_T, dual_clip * advantage_T)
    return torch.where(advantage_T < 0, bounded_T, objective_T)


def decoupled_surrogate(
    current_T: Tensor,
    proximal_T: Tensor,
    importance_T: Tensor,
    advantage_T: Tensor,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """The clipped objective of current over proximal, times the weights of proximal over behaviour.

    Args:
        current_T: Log-probabilities that are differentiated, `[T]`, nats.
        proximal_T: Log-probabilities before the step, `[T]`, constants.
        importance_T: Corrected (truncated) weights proximal / behaviour, `[T]`, constants.
        advantage_T: Advantages, `[T]`.
        clip_low: Lower clip of the first ratio.
        clip_high: Upper clip of the first ratio.

    Returns:
        The objective of each token, `[T]`.
    """
    ratio_T = (current_T - proximal_T.detach()).exp()
    return importance_T.detach() * clipped_surrogate(ratio_T, advantage_T, clip_low, clip_high)


def clipped_tokens(ratio_T: Tensor, advantage_T: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Which tokens have no gradient because their ratio is clipped, `[T]` bool."""
    above = (ratio_T > 1 + clip_high) & (advantage_T > 0)
    below = (ratio_T < 1 - clip_low) & (advantage_T < 0)
    return above | below


def sequence_weights(lengths_N: Tensor, aggregation: str, constant: float) -> Tensor:
    """What one token of each sequence weighs in the loss, so that the loss is the weighted sum of token losses.

        token_mean      1 / all sampled tokens                       each token counts the same
        sequence_mean   1 / (sequences * the sequence's tokens)      each sequence counts the same
        constant        1 / (sequences * constant)                   no length enters (2503.20783, section 3.1)

    The sequences are all valid ones of the whole batch, over all micro-batches and ranks: the denominators are
    global, and tokens that are masked or weigh less afterwards do not shrink them.

    Args:
        lengths_N: Sampled tokens of each sequence of the batch, `[N]`, before any masking.
        aggregation: `token_mean`, `sequence_mean` or `constant`.
        constant: The constant, in tokens; read by `constant` alone.

    Returns:
        Weights `[N]`, float64.

    Raises:
        ValueError: `aggregation` is unknown.
    """
    lengths = lengths_N.double()
    sequences = max(1, lengths.numel())
    match aggregation:
        case "token_mean":
            return torch.full_like(lengths, 1.0) / lengths.sum().clamp(min=1)
        case "sequence_mean":
            return 1.0 / (sequences * lengths.clamp(min=1))
        case "constant":
            return torch.full_like(lengths, 1.0 / (sequences * constant))
        case _:
            raise ValueError(f"unknown aggregation {aggregation!r}: token_mean, sequence_mean or constant")
