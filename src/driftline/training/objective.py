"""The objective of each sampled token, composed as a run's parameters choose.

    proximal      recomputed ─ under the current weights; one step a batch, so it is the forward pass itself
                  interpolated ─ between behaviour and current policy, by version (A-3PO)
                  behaviour ─ the policy that sampled: one ratio, current over behaviour
    surrogate     of current over proximal: clipped | cispo | gspo | dppo
    importance    correction of proximal over behaviour: `driftline.divergence.corrections`
    mask          sequences with a negative advantage that are too far from the current policy

The objective is `importance x surrogate`, never both limits on one ratio: with `proximal: behaviour` there is no
importance weight, and the surrogates that need the behaviour policy in their ratio need that proximal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from driftline.divergence.corrections import (
    Correction,
    importance_weights,
    interpolated_proximal,
    negative_sequence_mask,
)
from driftline.divergence.estimators import ratio
from driftline.params import TrainingParameters
from driftline.training.losses import (
    cispo_coefficient,
    cispo_surrogate,
    clipped_surrogate,
    clipped_tokens,
    gspo_ratio,
    total_variation_mask,
)


@dataclass(frozen=True, slots=True)
class ObjectiveChoice:
    """Which objective; a value."""

    proximal: Literal["recomputed", "interpolated", "behaviour"] = "recomputed"
    surrogate: Literal["clipped", "cispo", "gspo", "dppo"] = "clipped"
    correction: Correction = field(default_factory=Correction)
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    dppo_threshold: float = 0.2
    negative_sequence_nats: float | None = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What is known of some sampled tokens of whole sequences, all `[N]` and constant."""

    behaviour_N: Tensor
    """Log-probabilities as sampled, nats, float64."""
    lag_N: Tensor
    """int64, versions."""
    advantage_N: Tensor
    sequence_N: Tensor
    """int64: which sequence of the batch."""


@dataclass(frozen=True, slots=True)
class TokenObjective:
    """The objective of some tokens, all `[N]`; everything but `objective_N` is detached."""

    objective_N: Tensor
    """To be maximised; differentiable."""
    log_ratio_N: Tensor
    """Current minus behaviour log-probability, nats, float64: the raw weight's logarithm."""
    applied_N: Tensor
    """What the gradient of a token's log-probability is multiplied by, besides its advantage."""
    clipped_N: Tensor
    """bool: the surrogate took the token's gradient away."""
    masked_N: Tensor
    """bool: the correction or the sequence mask did."""
    negative_N: Tensor
    """bool: of these, what the sequence mask did alone."""


def choice_of(training: TrainingParameters) -> ObjectiveChoice:
    """The objective that the parameters choose."""
    return ObjectiveChoice(
        proximal=training.proximal,
        surrogate=training.surrogate,
        correction=Correction(
            training.importance, training.importance_cap, training.importance_low, training.importance_high
        ),
        clip_low=training.clip_low,
        clip_high=training.clip_high,
        dual_clip=training.dual_clip,
        dppo_threshold=training.dppo_threshold,
        negative_sequence_nats=training.negative_sequence_nats,
    )


def token_objective(current_N: Tensor, tokens: SampledTokens, choice: ObjectiveChoice) -> TokenObjective:
    """The objective of sampled tokens.

    Args:
        current_N: Their log-probabilities under the current policy, `[N]`, nats; differentiated.
        tokens: The rest.
        choice: Which objective.
    """
    proximal = _proximal(current_N.detach().double(), tokens.behaviour_N.double(), tokens.lag_N, choice)
    return objective_around(current_N, proximal, tokens, choice)


def objective_around(
    current_N: Tensor, proximal: Tensor, tokens: SampledTokens, choice: ObjectiveChoice
) -> TokenObjective:
    """The same around a given proximal policy; `choice.proximal` is not read.

    Args:
        current_N: Log-probabilities under the current policy, `[N]`, nats; differentiated.
        proximal: Log-probabilities under the proximal policy, `[N]`, nats, float64, constants.
        tokens: The rest.
        choice: Which objective.
    """
    current, behaviour = current_N.detach().double(), tokens.behaviour_N.double()
    weights = importance_weights(proximal - behaviour, tokens.sequence_N, choice.correction)
    negative_N = torch.zeros_like(weights.masked_T)
    if choice.negative_sequence_nats is not None:
        negative_N = ~weights.masked_T & negative_sequence_mask(
            current - behaviour, tokens.advantage_N, tokens.sequence_N, choice.negative_sequence_nats
        )
    masked_N = weights.masked_T | negative_N
    importance_N = weights.applied_T.masked_fill(masked_N, 0.0)
    surrogate_N, coefficient_N, clipped_N = _surrogate(current_N, proximal, tokens, choice)
    return TokenObjective(
        objective_N=importance_N.to(current_N.dtype) * surrogate_N,
        log_ratio_N=current - behaviour,
        applied_N=importance_N * coefficient_N.double(),
        clipped_N=clipped_N,
        masked_N=masked_N,
        negative_N=negative_N,
    )


def _proximal(current: Tensor, behaviour: Tensor, lag_N: Tensor, choice: ObjectiveChoice) -> Tensor:
    match choice.proximal:
        case "recomputed":
            return current
        case "behaviour":
            return behaviour
        case "interpolated":
            return interpolated_proximal(
                current, behaviour, current_version=0, proximal_version=-1, behaviour_version=-lag_N
            )


def _surrogate(
    current_N: Tensor, proximal: Tensor, tokens: SampledTokens, choice: ObjectiveChoice
) -> tuple[Tensor, Tensor, Tensor]:
    """(objective, what it multiplies the gradient of the log-probability by besides the advantage, clipped)."""
    advantage_N, low, high = tokens.advantage_N, choice.clip_low, choice.clip_high
    log_ratio_N = current_N - proximal.to(current_N.dtype)
    ratio_N = ratio(log_ratio_N)
    match choice.surrogate:
        case "clipped":
            objective_N = clipped_surrogate(ratio_N, advantage_N, low, high, choice.dual_clip)
            clipped_N = clipped_tokens(ratio_N.detach(), advantage_N, low, high, choice.dual_clip)
        case "cispo":
            objective_N = cispo_surrogate(current_N, ratio_N, advantage_N, low, high)
            clipped_N = torch.zeros_like(advantage_N, dtype=torch.bool)
            return objective_N, cispo_coefficient(ratio_N, low, high), clipped_N
        case "gspo":
            ratio_N = gspo_ratio(log_ratio_N, tokens.sequence_N)
            objective_N = clipped_surrogate(ratio_N, advantage_N, low, high)
            clipped_N = clipped_tokens(ratio_N.detach(), advantage_N, low, high)
        case "dppo":
            clipped_N = total_variation_mask(current_N, proximal, advantage_N, choice.dppo_threshold)
            objective_N = (ratio_N * advantage_N).masked_fill(clipped_N, 0.0)
    return objective_N, ratio_N.detach().masked_fill(clipped_N, 0.0), clipped_N
