"""Properties of the trainer's mathematics and of packing, over random inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from driftline.divergence.age import age
from driftline.divergence.corrections import icepop, token_truncated
from driftline.divergence.estimators import divergence_sums, k3, summarise
from driftline.training.advantages import ADVANTAGES, group_advantages
from driftline.training.losses import clipped_surrogate, sequence_weights
from driftline.training.packing import cut, padded_tokens, share

rewards = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0, -1.0, 3.5]), st.booleans()), min_size=1, max_size=12)
log_ratios = st.lists(st.floats(-6, 6), min_size=1, max_size=40)
lengths = st.lists(st.integers(1, 300), min_size=0, max_size=60)


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(group=rewards)
def test_advantages_sum_to_zero_and_leave_invalid_members_out(kind: str, group: list[tuple[float, bool]]):
    values = torch.tensor([reward if valid else math.nan for reward, valid in group], dtype=torch.float64)
    valid = torch.tensor([valid for _, valid in group])
    found = group_advantages(values, valid, kind)
    assert torch.isfinite(found).all()
    assert abs(float(found.sum())) < 1e-9
    assert bool((found[~valid] == 0).all())
    alone = group_advantages(values[valid], torch.ones(int(valid.sum())), kind)
    assert torch.equal(found[valid], alone)


@given(group=rewards, shift=st.floats(-10, 10), scale=st.floats(0.1, 10))
def test_grpo_advantages_ignore_the_scale_of_rewards(group: list[tuple[float, bool]], shift: float, scale: float):
    values = torch.tensor([reward for reward, _ in group], dtype=torch.float64)
    valid = torch.tensor([valid for _, valid in group])
    found = group_advantages(values * scale + shift, valid, "grpo")
    assert torch.allclose(found, group_advantages(values, valid, "grpo"), atol=1e-6)


@given(values=log_ratios)
def test_k3_is_never_negative_and_ess_is_a_share(values: list[float]):
    log_ratio = torch.tensor(values, dtype=torch.float64)
    assert bool((k3(log_ratio) >= 0).all())
    found = summarise(divergence_sums(log_ratio))
    assert found.k3 >= 0
    assert 0 < found.ess_fraction <= 1 + 1e-12
    assert found.total_variation >= 0


@given(log_ratio=st.floats(-3.4e38, 3.4e38))
@example(3.4e38)  # A behaviour log-probability of float32's least: a masked token that was sampled all the same.
@example(5e8)
def test_k3_is_large_wherever_the_policies_are_far_apart(log_ratio: float):
    found = float(k3(torch.tensor([log_ratio], dtype=torch.float64)))
    assert found >= (19 if abs(log_ratio) > 20 else 0)


@given(values=log_ratios, at=st.integers(0, 40))
def test_divergence_adds_up_over_micro_batches(values: list[float], at: int):
    log_ratio = torch.tensor(values, dtype=torch.float64)
    whole = divergence_sums(log_ratio)
    assert torch.allclose(divergence_sums(log_ratio[:at]) + divergence_sums(log_ratio[at:]), whole, rtol=1e-12)


@given(values=log_ratios, cap=st.floats(1.01, 5))
def test_corrections_never_raise_a_weight(values: list[float], cap: float):
    ratio = torch.tensor(values, dtype=torch.float64).exp()
    assert bool((token_truncated(ratio, cap) <= ratio).all())
    assert float(token_truncated(ratio, cap).max()) <= cap
    assert bool((icepop(ratio, 0.5, cap) <= ratio).all())


@given(ratio=st.floats(0.01, 10), advantage=st.floats(-5, 5), low=st.floats(0.05, 0.9), high=st.floats(0.05, 2))
def test_the_clipped_objective_is_a_lower_bound(ratio: float, advantage: float, low: float, high: float):
    found = clipped_surrogate(torch.tensor([ratio]), torch.tensor([advantage]), low, high)
    assert float(found) <= ratio * advantage + 1e-5


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_weights_of_all_tokens_sum_to_one(aggregation: str, counts: list[int]):
    weights = sequence_weights(torch.tensor(counts), aggregation, 1.0)
    assert math.isclose(float((weights * torch.tensor(counts)).sum()), 1.0, rel_tol=1e-12)


@given(values=lengths, budget=st.integers(64, 600), overhead=st.integers(0, 200))
def test_micro_batches_hold_every_sequence_once_within_the_budget(values: list[int], budget: int, overhead: int):
    plans = cut(values, budget, overhead)
    assert sorted(index for plan in plans for index in plan) == list(range(len(values)))
    for plan in plans:
        assert plan
        assert len(plan) == 1 or padded_tokens(plan, values) <= budget
    flat = [values[index] for plan in plans for index in plan]
    assert flat == sorted(values)


@given(values=st.lists(st.integers(1, 60), min_size=1, max_size=7), overhead=st.integers(0, 100))
def test_cuts_cost_least(values: list[int], overhead: int):
    budget = 120

    def cost(parts: list[list[int]]) -> int:
        return sum(len(part) * max(part) + overhead for part in parts)

    ordered = sorted(values)
    splits = [
        [ordered[a:b] for a, b in zip([0, *cuts], [*cuts, len(ordered)], strict=True)]
        for bits in range(2 ** (len(ordered) - 1))
        for cuts in [[i + 1 for i in range(len(ordered) - 1) if bits >> i & 1]]
    ]
    allowed = [s for s in splits if all(len(part) == 1 or len(part) * max(part) <= budget for part in s)]
    found = [[values[index] for index in plan] for plan in cut(values, budget, overhead)]
    assert cost(found) == min(cost(s) for s in allowed)


@given(values=lengths, ranks=st.integers(1, 5))
def test_every_rank_gets_as_many_micro_batches(values: list[int], ranks: int):
    plans = cut(values, 256)
    shares = share(plans, values, ranks)
    assert len(shares) == ranks
    assert len({len(own) for own in shares}) == 1
    assert sorted(plan for own in shares for plan in own if plan) == sorted(plans)
    assert sum(plan == () for own in shares for plan in own) < max(1, ranks)


@given(trained=st.integers(0, 30), first=st.integers(0, 40), more=st.integers(0, 40))
def test_age_splits_into_parts_that_are_never_negative(trained: int, first: int, more: int):
    found = age(trained, first, first + more)
    assert found.total == found.in_flight + found.in_queue
    assert min(found.in_flight, found.in_queue) >= 0
    assert found.total <= trained
