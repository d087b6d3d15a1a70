"""Groups become tensors: what is in, what is out, and with which advantage, lag and weight."""

from __future__ import annotations

import math

import pytest
import torch

from driftline.records import Group
from driftline.training.batch import TrainingBatch, assemble, weights_of_valid
from driftline.training.segments import sampled_lags, span_lags
from tests.support.training import group, trajectory


def assembled(groups: list[Group], *, version: int = 0, aggregation: str = "token_mean") -> TrainingBatch:
    weights = {g.number: weights_of_valid(g) for g in groups}
    return assemble(groups, weights, version=version, advantage="dr_grpo", aggregation=aggregation, constant=8.0)


def test_sequences_lie_one_after_the_other():
    members = (
        trajectory(0, 0, tokens=(1, 2, 3), mask=(False, True, True), logprobs=(0.0, -1.0, -2.0), reward=1.0),
        trajectory(0, 1, tokens=(4, 5), mask=(False, True), logprobs=(0.0, -3.0), reward=0.0),
    )
    batch = assembled([Group(0, "t", "v1", members)])
    assert batch.token_ids_S.tolist() == [1, 2, 3, 4, 5]
    assert batch.sampled_S.tolist() == [False, True, True, False, True]
    assert batch.behaviour_S.tolist() == [0.0, -1.0, -2.0, 0.0, -3.0]
    assert batch.lengths_N.tolist() == [3, 2]
    assert batch.advantages_N.tolist() == [0.5, -0.5]
    assert torch.allclose(batch.weights_N, torch.full((2,), 1 / 3, dtype=torch.float64))


def test_an_infrastructure_failure_is_in_no_statistic():
    """NeMo-RL#2207, verl#6452: a failed member is no reward of 0, and moves no baseline."""
    batch = assembled([group(0, [1.0, None, 0.0])])
    assert batch.sequences == 2
    assert batch.advantages_N.tolist() == [0.5, -0.5]
    assert float((batch.weights_N * torch.tensor([2.0, 2.0])).sum()) == pytest.approx(1.0)


def test_a_group_of_weight_zero_stays_in_the_denominator():
    groups = [group(0, [1.0, 1.0]), group(1, [1.0, 0.0])]
    weights = {0: (0.0, 0.0), 1: (1.0, 1.0)}
    batch = assemble(groups, weights, version=0, advantage="grpo", aggregation="sequence_mean", constant=1.0)
    assert batch.advantages_N.tolist()[:2] == [0.0, 0.0]
    assert batch.advantages_N.tolist()[2] > 0
    assert batch.weights_N.tolist() == pytest.approx([1 / 8] * 4)


def test_a_weight_scales_the_advantage_of_its_member_alone():
    """The baseline is that of all four members, whatever becomes of them."""
    groups, weights = [group(0, [1.0, 0.0, 1.0, 0.0])], {0: (0.25, 1.0, 0.0, 1.0)}
    batch = assemble(groups, weights, version=0, advantage="dr_grpo", aggregation="token_mean", constant=1.0)
    assert batch.advantages_N.tolist() == [0.125, -0.5, 0.0, -0.5]
    assert batch.weights_N.tolist() == pytest.approx([1 / 8] * 4), "a dropped member keeps its place"


def test_a_member_without_a_weight_is_in_no_statistic():
    groups, weights = [group(0, [1.0, 0.0, 0.0])], {0: (1.0, 1.0, None)}
    batch = assemble(groups, weights, version=0, advantage="dr_grpo", aggregation="token_mean", constant=1.0)
    assert batch.sequences == 2
    assert batch.advantages_N.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_member_whose_log_probabilities_are_no_numbers_is_invalid(bad: float):
    """A number that is none fails its own trajectory, never its group."""
    members = (*group(0, [1.0, 0.0]).trajectories, trajectory(0, 2, logprobs=(0.0, bad, 0.0, -0.5)))
    batch = assembled([Group(0, "t", "v1", members)])
    assert batch.advantages_N.tolist() == [0.5, -0.5]
    assert torch.isfinite(batch.behaviour_S).all()


def test_a_sampled_first_token_has_no_context_and_is_left_out():
    batch = assembled([Group(0, "t", "v1", tuple(trajectory(0, m, mask=(True,) * 4) for m in range(2)))])
    assert batch.sampled_S.tolist() == [False, True, True, True] * 2


def test_lags_follow_the_segments():
    """Versions are stamped when tokens are generated: one trajectory may hold several."""
    member = trajectory(
        tokens=range(6), mask=(False, True, False, True, True, True), segments=((0, 2), (3, 3), (5, 9))
    )
    assert span_lags(member, version=5) == [3, 3, 3, 2, 2, 0]
    assert sampled_lags(member, version=5) == {3: 1, 2: 2, 0: 1}


def test_a_trajectory_without_segments_has_no_lag():
    assert span_lags(trajectory(segments=()), version=5) == [0, 0, 0, 0]
    assert not sampled_lags(trajectory(segments=()), version=5)


def test_a_batch_without_a_valid_member_is_refused():
    with pytest.raises(ValueError, match="no group of the batch has a valid member"):
        assembled([group(0, [None, None])])
