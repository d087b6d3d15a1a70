"""What one optimizer step measured, gathered in one vector of sums and one of maxima over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from driftline.divergence.estimators import SUMS, DivergenceSummary, ratio, summarise, token_terms

_SCALARS = 8
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
    by_lag: Mapping[int, DivergenceSummary] = field(default_factory=dict[int, DivergenceSummary])
    """Of the tokens of each lag that occurs; the largest stands for all beyond it."""
    by_sequence: tuple[DivergenceSummary, ...] = ()
    """Of each sequence of the batch, in its order."""
    masked_tokens: int = 0
    """Tokens with an advantage that the correction or the sequence mask took out."""
    masked_by_sequence: tuple[int, ...] = ()
    """The masked tokens, sequence by sequence."""
    clipped_tokens: int = 0
    """Tokens with an advantage, not masked, whose gradient the surrogate took away."""


class StatisticsAccumulator:
    """Adds up micro-batches; `sums` and `maxima` are what ranks reduce (by sum and by maximum)."""

    def __init__(self, sequences: int = 0, lags: int = 33) -> None:
        """Begin with nothing.

        Args:
            sequences: Sequences of the batch, over all micro-batches and ranks.
            lags: How many lags are told apart, from 0 on; the last takes all beyond it.
        """
        self._sequences, self._lags = sequences, lags
        self.sums = torch.zeros((lags + sequences) * SUMS + sequences + _SCALARS, dtype=torch.float64)
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
        masked_N: Tensor | None = None,
        sequence_N: Tensor | None = None,
    ) -> None:
        """Add the sampled tokens of one micro-batch.

        Args:
            loss: The micro-batch's part of the loss, a scalar.
            entropy_N: Entropy of the current policy at each token, nats.
            log_ratio_N: Current minus behaviour log-probability, nats.
            applied_N: The weight that the loss used.
            clipped_N: Whether the loss clipped the token's ratio.
            advantage_N: The token's advantage.
            lag_N: The token's lag in versions.
            masked_N: Whether a correction masked the token; None masks none.
            sequence_N: The token's sequence in the batch; None where sequences are not told apart.
        """
        log_ratio = log_ratio_N.detach().double().cpu()
        applied = applied_N.detach().double().cpu()
        terms = token_terms(log_ratio)
        lag = lag_N.cpu()
        self._rows(0, self._lags).index_add_(0, lag.clamp(max=self._lags - 1), terms)
        raw = ratio(log_ratio)
        taught = advantage_N.cpu() != 0
        masked = torch.zeros_like(taught) if masked_N is None else masked_N.cpu() & taught
        if sequence_N is not None:
            self._rows(self._lags, self._sequences).index_add_(0, sequence_N.cpu(), terms)
            self._masked().index_add_(0, sequence_N.cpu(), masked.double())
        scalars = [
            loss.detach().double().cpu(),
            entropy_N.double().sum().cpu(),
            applied.sum(),
            (applied < raw * (1 - 1e-6)).double().sum(),
            clipped_N.double().sum().cpu(),
            advantage_N.double().abs().sum().cpu(),
            masked.double().sum(),
            (clipped_N.cpu() & taught & ~masked).double().sum(),
        ]
        self.sums[-_SCALARS:] += torch.stack(scalars)
        maxima = torch.stack([_max(raw), _max(applied), _max(log_ratio.abs()), _max(log_ratio[lag == 0].abs())])
        self.maxima = torch.maximum(self.maxima, maxima)

    def read(self) -> StepStatistics:
        """The statistics of what was added (and reduced)."""
        by_lag = self._rows(0, self._lags)
        divergence = summarise(by_lag.sum(0))
        tokens = max(1, divergence.tokens)
        loss, entropy, applied, truncated, clipped, advantage, masked, cut = (float(x) for x in self.sums[-_SCALARS:])
        raw_max, applied_max, difference_max, floor_max = (float(x) for x in self.maxima)
        return StepStatistics(
            loss=loss,
            entropy_nats=entropy / tokens,
            divergence=divergence,
            floor=summarise(by_lag[0]),
            importance_raw_max=raw_max,
            importance_applied_mean=applied / tokens,
            importance_applied_max=applied_max,
            importance_truncated_share=truncated / tokens,
            clip_share=clipped / tokens,
            advantage_abs_mean=advantage / tokens,
            difference_max_nats=difference_max,
            floor_difference_max_nats=floor_max,
            by_lag={lag: found for lag, row in enumerate(by_lag) if (found := summarise(row)).tokens},
            by_sequence=tuple(summarise(row) for row in self._rows(self._lags, self._sequences)),
            masked_tokens=round(masked),
            masked_by_sequence=tuple(round(float(count)) for count in self._masked()),
            clipped_tokens=round(cut),
        )

    def _masked(self) -> Tensor:
        """Masked tokens of each sequence, as a view."""
        return self.sums[-_SCALARS - self._sequences : -_SCALARS]

    def _rows(self, first: int, count: int) -> Tensor:
        """Sums of some lags or sequences, `[count, SUMS]`, as a view."""
        return self.sums[first * SUMS : (first + count) * SUMS].view(count, SUMS)


def _max(values: Tensor) -> Tensor:
    return values.max() if values.numel() else torch.zeros((), dtype=torch.float64)
