"""What one optimizer step measured, gathered in one vector of sums and one of maxima over micro-batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from driftline.divergence.estimators import SUMS, DivergenceSummary, divergence_sums, summarise

_SCALARS = 6
_LENGTH = 2 * SUMS + _SCALARS
_MAXIMA = 4


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Over all sampled tokens of the batch, before the step."""

    loss: float
    entropy_nats: float
    divergence: DivergenceSummary
    """Of raw weights."""
    floor: DivergenceSummary
    """Of the tokens of lag 0 alone: what engine and trainer differ by."""
    importance_raw_max: float
    importance_applied_mean: float
    importance_applied_max: float
    importance_truncated_share: float
    clip_share: float
    advantage_abs_mean: float
    difference_max_nats: float
    floor_difference_max_nats: float


class StatisticsAccumulator:
    """Adds up micro-batches; `sums` and `maxima` are what ranks reduce (by sum and by maximum)."""

    def __init__(self) -> None:
        self.sums = torch.zeros(_LENGTH, dtype=torch.float64)
        self.maxima = torch.zeros(_MAXIMA, dtype=torch.float64)

    def add(
        self,
        *,
        loss: Tensor,
        entropy_N: Tensor,
        log_ratio_N: Tensor,
        applied_N: Tensor,
        clipped_N: Tensor,
        advantage_N: Tensor,
        lag_N: Tensor,
    ) -> None:
        """Add the sampled tokens of one micro-batch.

        Args:
            loss: The micro-batch's part of the loss, a scalar.
            entropy_N: Entropy of the current policy at each token, nats.
            log_ratio_N: Current minus behaviour log-probability, nats.
            applied_N: The importance weight that the loss used.
            clipped_N: Whether the loss clipped the token's ratio.
            advantage_N: The token's advantage.
            lag_N: The token's lag in versions.
        """
        log_ratio = log_ratio_N.detach().double().cpu()
        applied = applied_N.detach().double().cpu()
        raw = log_ratio.exp()
        floor = log_ratio[lag_N.cpu() == 0]
        scalars = torch.stack(
            [
                loss.detach().double().cpu(),
                entropy_N.double().sum().cpu(),
                applied.sum(),
                (applied < raw * (1 - 1e-6)).double().sum(),
                clipped_N.double().sum().cpu(),
                advantage_N.double().abs().sum().cpu(),
            ]
        )
        self.sums += torch.cat([divergence_sums(log_ratio), divergence_sums(floor), scalars])
        maxima = torch.stack([_max(raw), _max(applied), _max(log_ratio.abs()), _max(floor.abs())])
        self.maxima = torch.maximum(self.maxima, maxima)

    def read(self) -> StepStatistics:
        """The statistics of what was added (and reduced)."""
        divergence = summarise(self.sums[:SUMS])
        tokens = max(1, divergence.tokens)
        loss, entropy, applied, truncated, clipped, advantage = (float(x) for x in self.sums[2 * SUMS :])
        raw_max, applied_max, difference_max, floor_max = (float(x) for x in self.maxima)
        return StepStatistics(
            loss=loss,
            entropy_nats=entropy / tokens,
            divergence=divergence,
            floor=summarise(self.sums[SUMS : 2 * SUMS]),
            importance_raw_max=raw_max,
            importance_applied_mean=applied / tokens,
            importance_applied_max=applied_max,
            importance_truncated_share=truncated / tokens,
            clip_share=clipped / tokens,
            advantage_abs_mean=advantage / tokens,
            difference_max_nats=difference_max,
            floor_difference_max_nats=floor_max,
        )


def _max(values: Tensor) -> Tensor:
    return values.max() if values.numel() else torch.zeros((), dtype=torch.float64)
