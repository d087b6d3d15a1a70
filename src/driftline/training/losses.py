"""Surrogates of the policy objective, and how token losses become one loss. Written once and pure.

Two ratios, never folded into one: current over proximal, which is differentiated and limited by a surrogate (it
limits the step), and proximal over behaviour, a constant weight that is corrected (for who sampled the token). See
"Batch size-invariance for policy optimization" (2110.00641), section 3, and AReaL (2505.24298), section 5.2. The
two are composed in `objective`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from driftline.divergence.corrections import sequence_means
from driftline.divergence.estimators import ratio as ratio_of


def clipped_surrogate(
    ratio_T: Tensor, advantage_T: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """PPO's clipped objective (to be maximised), with separate limits below and above.

    Args:
        ratio_T: Current over proximal probability, `[T]`.
        advantage_T: Advantages, `[T]`.
        clip_low: The ratio is clipped below at `1 - clip_low`.
        clip_high: The ratio is clipped above at `1 + clip_high`.
        dual_clip: Lower bound of the objective of a negative advantage, in units of the advantage; None is none
            ("Mastering Complex Control in MOBA Games", 1912.09729, section 3.4).

    Returns:
        The objective of each token, `[T]`.
    """
    clipped_T = ratio_T.clamp(1 - clip_low, 1 + clip_high)
    objective_T = torch.minimum(ratio_T * advantage_T, clipped_T * advantage_T)
    if dual_clip is None:
        return objective_T
    bounded_T = torch.maximum(objective_T, dual_clip * advantage_T)
    return torch.where(advantage_T < 0, bounded_T, objective_T)


def clipped_tokens(
    ratio_T: Tensor, advantage_T: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Which tokens have no gradient because `clipped_surrogate` clips their ratio, `[T]` bool."""
    above = (ratio_T > 1 + clip_high) & (advantage_T > 0)
    below = (ratio_T < 1 - clip_low) & (advantage_T < 0)
    if dual_clip is None:
        return above | below
    return above | below | ((ratio_T > dual_clip) & (advantage_T < 0))


def cispo_coefficient(ratio_T: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """CISPO's weights `[T]`, detached: the ratio clipped to [1 - clip_low, 1 + clip_high]; no token is left out.

    MiniMax-M1 (2506.13585), section 3.1. `clip_low` of 1 is no lower limit.
    """
    return ratio_T.detach().clamp(1 - clip_low, 1 + clip_high)


def cispo_surrogate(
    current_T: Tensor, ratio_T: Tensor, advantage_T: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """CISPO's objective `[T]`: log-probability times advantage, by `cispo_coefficient`."""
    return cispo_coefficient(ratio_T, clip_low, clip_high) * advantage_T * current_T


def gspo_ratio(log_ratio_T: Tensor, sequence_T: Tensor) -> Tensor:
    """GSPO's ratio for each token, `[T]`: in value the geometric mean of its sequence, with its own gradient.

    "Group Sequence Policy Optimization" (2507.18071), sections 4.1 and 4.3. Summed with weights of 1 / length, the
    gradients of the tokens are that of the sequence's ratio.

    Args:
        log_ratio_T: Current minus behaviour log-probability, `[T]`, nats, of whole sequences.
        sequence_T: Which sequence each token belongs to, `[T]`.
    """
    sequence = ratio_of(sequence_means(log_ratio_T.detach(), sequence_T))
    return sequence * (log_ratio_T - log_ratio_T.detach()).exp()


def total_variation_mask(current_T: Tensor, behaviour_T: Tensor, advantage_T: Tensor, threshold: float) -> Tensor:
    """DPPO's mask with the binary total variation: which tokens get no gradient, `[T]` bool.

    A token is masked when its own probability has moved by more than the threshold in the direction in which its
    advantage would move it further. "Rethinking the Trust Region in LLM Reinforcement Learning" (2602.04879), sec. 4.

    Args:
        current_T: Log-probabilities under the current policy, `[T]`, nats.
        behaviour_T: As sampled, `[T]`, nats.
        advantage_T: Advantages, `[T]`.
        threshold: Largest difference of probabilities, in (0, 1).
    """
    moved_T = current_T.detach().exp() - behaviour_T.exp()
    return (moved_T.abs() > threshold) & (moved_T * advantage_T > 0)


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
