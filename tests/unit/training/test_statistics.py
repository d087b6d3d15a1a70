"""Statistics of a step add up over micro-batches, and tell the floor from the rest."""

from __future__ import annotations

import math

import pytest
import torch

from driftline.training.statistics import StatisticsAccumulator


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


def test_nothing_added_is_no_divergence():
    read = StatisticsAccumulator().read()
    assert (read.divergence.tokens, read.divergence.ess_fraction, read.loss) == (0, 1.0, 0.0)
