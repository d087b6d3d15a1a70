"""What one optimizer step measured, gathered in one vector of sums and one of maxima over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from driftline.divergence.estimators import SUMS, DivergenceSummary, ratio, summarise, token_terms

_SCALARS = 8
_MAXIMA = 5
MOST_LAGS = 130
"""Lags that are told apart at most: a table has a row for each, for each sequence."""
_COUNTS = 3
"""Counts of each sequence: tokens trained on, masked by the correction, masked by the sequence mask."""


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
    negative_by_sequence: tuple[int, ...] = ()
    """Of these, what the mask of negative sequences took out alone."""
    trained_by_sequence: tuple[int, ...] = ()
    """Tokens that nothing masked, sequence by sequence, whether or not they have an advantage."""
    by_sequence_and_lag: tuple[Mapping[int, DivergenceSummary], ...] = ()
    """Of each sequence, by the lags that occur in it."""
    clipped_tokens: int = 0
    """Tokens with an advantage, not masked, whose gradient the surrogate took away."""


def lags_told_apart(max_lag_versions: int) -> int:
    """How many lags a run's statistics tell apart, from 0 on; the last takes all beyond it.

    One more than may be trained on, which members that admission drops for their age can have; but a limit that is
    meant to be none does not make the tables large.
    """
    return min(max_lag_versions + 2, MOST_LAGS)


class StatisticsAccumulator:
    """Adds up micro-batches; `sums` and `maxima` are what ranks reduce (by sum and by maximum)."""

    def __init__(self, sequences: int = 0, lags: int = 33) -> None:
        """Begin with nothing.

        Args:
            sequences: Sequences of the batch, over all micro-batches and ranks.
            lags: How many lags are told apart, from 0 on; the last takes all beyond it.
        """
        self._sequences, self._lags = max(1, sequences), lags
        rows = self._sequences
        self.sums = torch.zeros(rows * (lags * SUMS + _COUNTS) + _SCALARS, dtype=torch.float64)
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
        negative_N: Tensor | None = None,
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
            masked_N: Whether a correction or the sequence mask took the token out; None masks none.
            negative_N: Whether it was the sequence mask alone; None where it was not.
            sequence_N: The token's sequence in the batch; None counts all to the first.
        """
        log_ratio, applied = log_ratio_N.detach().double().cpu(), applied_N.detach().double().cpu()
        lag, advantage, clipped = lag_N.cpu(), advantage_N.double().cpu(), clipped_N.cpu()
        sequence = torch.zeros_like(lag) if sequence_N is None else sequence_N.cpu()
        nothing = torch.zeros_like(clipped)
        masked = nothing if masked_N is None else masked_N.cpu() & (advantage != 0)
        negative = nothing if negative_N is None else negative_N.cpu() & masked
        self._table().index_add_(0, sequence * self._lags + lag.clamp(max=self._lags - 1), token_terms(log_ratio))
        counts = torch.stack([~masked, masked & ~negative, negative], -1).double()
        self._counts().index_add_(0, sequence, counts)
        self.sums[-_SCALARS:] += _scalars(loss, entropy_N, log_ratio, applied, clipped, advantage, masked)
        self.maxima = torch.maximum(self.maxima, _maxima(log_ratio, applied, lag, sequence))

    @property
    def not_finite(self) -> int | None:
        """A sequence with a ratio that is no number, on any rank once reduced; None where there is none."""
        found = int(self.maxima[-1])
        return found - 1 if found else None

    def read(self) -> StepStatistics:
        """The statistics of what was added (and reduced)."""
        table = self._table().view(self._sequences, self._lags, SUMS)
        by_lag, by_sequence = table.sum(0), table.sum(1)
        divergence = summarise(by_lag.sum(0))
        trained_by, corrected_by, negative_by = map(_whole, zip(*_rows(self._counts()), strict=True))
        tokens = max(1, divergence.tokens)
        loss, entropy, applied, truncated, clipped, advantage, masked, cut = (float(x) for x in self.sums[-_SCALARS:])
        raw_max, applied_max, difference_max, floor_max, _ = (float(x) for x in self.maxima)
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
            by_lag=_present(_rows(by_lag)),
            by_sequence=tuple(summarise(row) for row in _rows(by_sequence)),
            masked_tokens=round(masked),
            masked_by_sequence=tuple(a + b for a, b in zip(corrected_by, negative_by, strict=True)),
            negative_by_sequence=negative_by,
            trained_by_sequence=trained_by,
            by_sequence_and_lag=tuple(_present(_rows(lags)) for lags in table),
            clipped_tokens=round(cut),
        )

    def _table(self) -> Tensor:
        """Sums of each sequence and lag, `[sequences * lags, SUMS]`, as a view."""
        rows = self._sequences * self._lags
        return self.sums[: rows * SUMS].view(rows, SUMS)

    def _counts(self) -> Tensor:
        """Counts of each sequence, `[sequences, _COUNTS]`, as a view."""
        return self.sums[-_SCALARS - self._sequences * _COUNTS : -_SCALARS].view(self._sequences, _COUNTS)


def _scalars(
    loss: Tensor,
    entropy_N: Tensor,
    log_ratio_N: Tensor,
    applied_N: Tensor,
    clipped_N: Tensor,
    advantage_N: Tensor,
    masked_N: Tensor,
) -> Tensor:
    """What some tokens add to the sums over all tokens, `[_SCALARS]`, in the order in which `read` has them."""
    truncated_N = applied_N < ratio(log_ratio_N) * (1 - 1e-6)
    scalars = [
        loss.detach().double().cpu(),
        entropy_N.double().sum().cpu(),
        applied_N.sum(),
        truncated_N.double().sum(),
        clipped_N.double().sum(),
        advantage_N.abs().sum(),
        masked_N.double().sum(),
        (clipped_N & (advantage_N != 0) & ~masked_N).double().sum(),
    ]
    return torch.stack(scalars)


def _maxima(log_ratio_N: Tensor, applied_N: Tensor, lag_N: Tensor, sequence_N: Tensor) -> Tensor:
    """The largest of some tokens, `[_MAXIMA]`; the last is 1 + a sequence with a ratio that is no number, or 0."""
    bad = sequence_N[~torch.isfinite(log_ratio_N)] + 1.0
    largest = [ratio(log_ratio_N), applied_N, log_ratio_N.abs(), log_ratio_N[lag_N == 0].abs(), bad.double()]
    return torch.stack([_max(values) for values in largest])


def _whole(counts: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(int(count) for count in counts)


def _rows(sums: Tensor) -> list[list[float]]:
    return cast(list[list[float]], sums.tolist())  # pyright: ignore[reportUnknownMemberType]


def _present(rows: Sequence[Sequence[float]]) -> dict[int, DivergenceSummary]:
    """The rows that hold tokens, by their index."""
    return {index: summarise(row) for index, row in enumerate(rows) if row[0]}


def _max(values: Tensor) -> Tensor:
    return values.max() if values.numel() else torch.zeros((), dtype=torch.float64)
