"""Statistics of a step add up over micro-batches, and tell the floor from the rest."""

from __future__ import annotations

import math

import pytest
import torch

from driftline.training.statistics import StatisticsAccumulator, lags_told_apart


def add(accumulator: StatisticsAccumulator, log_ratio: list[float], lag: list[int], cap: float = 2.0) -> None:
    values = torch.tensor(log_ratio, dtype=torch.float64)
    accumulator.add(
        loss=torch.tensor(0.25),
        entropy_N=torch.full((len(log_ratio),), 0.5),
        log_ratio_N=values,
        applied_N=values.exp().clamp(max=cap),
        clipped_N=torch.tensor([False] * len(log_ratio)),
        advantage_N=torch.tensor([-2.0] * len(log_ratio)),
        lag_N=torch.tensor(lag),
    )


def test_values_over_two_micro_batches():
    found = StatisticsAccumulator()
    add(found, [0.0, math.log(4.0)], [0, 1])
    add(found, [math.log(0.5)], [2])
    read = found.read()
    assert read.loss == 0.5
    assert read.entropy_nats == 0.5
    assert read.divergence.tokens == 3
    assert read.divergence.ratio_mean == pytest.approx((1 + 4 + 0.5) / 3)
    assert read.importance_raw_max == pytest.approx(4.0)
    assert read.importance_applied_max == pytest.approx(2.0)
    assert read.importance_applied_mean == pytest.approx((1 + 2 + 0.5) / 3)
    assert read.importance_truncated_share == pytest.approx(1 / 3)
    assert read.advantage_abs_mean == 2.0
    assert read.difference_max_nats == pytest.approx(math.log(4.0))


def test_the_floor_is_of_lag_zero_alone():
    """NeMo-RL#4243: what engine and trainer differ by is measured apart from staleness."""
    found = StatisticsAccumulator()
    add(found, [1e-3, 2.0], [0, 3])
    read = found.read()
    assert read.floor.tokens == 1
    assert read.floor_difference_max_nats == pytest.approx(1e-3)
    assert read.floor.k2 == pytest.approx(5e-7)
    assert read.difference_max_nats == pytest.approx(2.0)


def test_a_limit_of_age_that_is_none_makes_no_large_tables():
    assert [lags_told_apart(limit) for limit in (0, 8, 128, 129, 10**9)] == [2, 10, 130, 130, 130]


def test_nothing_added_is_no_divergence():
    read = StatisticsAccumulator().read()
    assert (read.divergence.tokens, read.divergence.ess_fraction, read.loss) == (0, 1.0, 0.0)


def test_lags_and_sequences_are_told_apart_over_micro_batches():
    found = StatisticsAccumulator(sequences=3, lags=3)
    for ratios, lag, sequence in (([2.0, 1.0], [0, 1], [0, 2]), ([4.0, 0.5], [7, 0], [2, 0])):
        values = torch.tensor(ratios, dtype=torch.float64).log()
        nothing = torch.zeros(2, dtype=torch.bool)
        found.add(
            loss=torch.tensor(0.0),
            entropy_N=torch.zeros(2),
            log_ratio_N=values,
            applied_N=values.exp(),
            clipped_N=nothing,
            advantage_N=torch.ones(2),
            lag_N=torch.tensor(lag),
            sequence_N=torch.tensor(sequence),
        )
    read = found.read()
    assert {lag: one.tokens for lag, one in read.by_lag.items()} == {0: 2, 1: 1, 2: 1}
    assert read.by_lag[2].ratio_mean == pytest.approx(4.0)
    assert read.by_lag[0] == read.floor
    assert [one.tokens for one in read.by_sequence] == [2, 0, 2]
    assert read.by_sequence[0].sequence_ratio == pytest.approx(1.0)
    assert read.by_sequence[2].ratio_mean == pytest.approx(2.5)
    assert read.divergence.ratio_mean == pytest.approx(7.5 / 4)
    tokens = [{lag: one.tokens for lag, one in lags.items()} for lags in read.by_sequence_and_lag]
    assert tokens == [{0: 2}, {}, {1: 1, 2: 1}]
    assert found.not_finite is None


def test_a_ratio_that_is_no_number_is_told_with_its_sequence_and_harms_no_other():
    found = StatisticsAccumulator(sequences=3)
    values = torch.tensor([0.0, math.nan, 0.0], dtype=torch.float64)
    found.add(
        loss=torch.tensor(0.0),
        entropy_N=torch.zeros(3),
        log_ratio_N=values,
        applied_N=values.exp(),
        clipped_N=torch.zeros(3, dtype=torch.bool),
        advantage_N=torch.ones(3),
        lag_N=torch.zeros(3, dtype=torch.long),
        sequence_N=torch.tensor([0, 1, 2]),
    )
    assert found.not_finite == 1
    assert [math.isfinite(one.k3) for one in found.read().by_sequence] == [True, False, True]


def test_masked_and_clipped_tokens_are_counted_once_where_they_taught():
    """A token of a sequence without an advantage counts as neither; one that is both counts as masked."""
    found = StatisticsAccumulator(sequences=4)
    found.add(
        loss=torch.tensor(0.0),
        entropy_N=torch.zeros(5),
        log_ratio_N=torch.zeros(5),
        applied_N=torch.zeros(5),
        clipped_N=torch.tensor([True, True, True, False, True]),
        masked_N=torch.tensor([True, False, True, True, False]),
        negative_N=torch.tensor([False, False, True, True, False]),
        advantage_N=torch.tensor([1.0, -1.0, 0.0, 2.0, 0.0]),
        lag_N=torch.zeros(5, dtype=torch.long),
        sequence_N=torch.tensor([1, 1, 2, 3, 0]),
    )
    read = found.read()
    assert (read.masked_tokens, read.clipped_tokens) == (2, 1)
    assert read.masked_by_sequence == (0, 1, 0, 1)
    assert read.negative_by_sequence == (0, 0, 0, 1)
    assert read.trained_by_sequence == (1, 1, 1, 0)
