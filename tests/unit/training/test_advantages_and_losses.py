"""Hand-computed values of the loss's parts that the reference file does not hold."""

from __future__ import annotations

import math

import pytest
import torch

from driftline.training.advantages import group_advantages, has_signal
from driftline.training.losses import clipped_tokens, sequence_weights


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_rewards_that_differ_by_rounding_are_equal():
    assert 0.1 + 0.2 != 0.3
    rewards = f64(0.1 + 0.2, 0.3, 0.3)
    assert not has_signal(rewards, torch.ones(3))
    assert group_advantages(rewards, torch.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_rewards_of_invalid_members_are_not_read():
    found = group_advantages(f64(1.0, math.nan, 0.0), torch.tensor([1, 0, 1]))
    assert found.tolist() == pytest.approx([math.sqrt(0.5), 0.0, -math.sqrt(0.5)])


def test_maxrl_without_a_positive_mean_teaches_nothing():
    assert group_advantages(f64(-1.0, 1.0), torch.ones(2), "maxrl").tolist() == [0.0, 0.0]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown advantage 'gae'"):
        group_advantages(f64(1.0, 0.0), torch.ones(2), "gae")
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        sequence_weights(torch.tensor([1]), "mean", 1.0)


def test_clipping_is_counted_on_the_side_where_it_binds():
    ratio = f64(1.5, 1.5, 0.5, 0.5, 1.0)
    advantage = f64(1.0, -1.0, 1.0, -1.0, 1.0)
    assert clipped_tokens(ratio, advantage, 0.2, 0.28).tolist() == [True, False, False, True, False]


def test_an_empty_sequence_weighs_nothing_strange():
    assert sequence_weights(torch.tensor([0, 2]), "sequence_mean", 1.0).tolist() == [0.5, 0.25]
    assert sequence_weights(torch.tensor([0]), "token_mean", 1.0).tolist() == [1.0]
