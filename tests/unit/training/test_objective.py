"""The composed objective: its gradient is what it says it applied, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from driftline.divergence.corrections import Correction
from driftline.params import RunParameters, TrainingParameters
from driftline.training.objective import ObjectiveChoice, SampledTokens, choice_of, token_objective
from tests.support.training import OPEN

NONE = Correction("none")
CHOICES = {
    "default": ObjectiveChoice(),
    "sequences": ObjectiveChoice(correction=Correction("sequence_truncated")),
    "icepop": ObjectiveChoice(correction=Correction("icepop")),
    "rejection": ObjectiveChoice(correction=Correction("geometric_rejection", low=0.7, high=1.3)),
    "masked": ObjectiveChoice(negative_sequence_nats=0.1),
    "interpolated": ObjectiveChoice(proximal="interpolated", dual_clip=1.5),
    "ppo": ObjectiveChoice(proximal="behaviour", correction=NONE, dual_clip=3.0),
    "cispo": ObjectiveChoice(proximal="behaviour", surrogate="cispo", correction=NONE, clip_low=1.0, clip_high=2.0),
    "gspo": ObjectiveChoice(proximal="behaviour", surrogate="gspo", correction=NONE, clip_low=0.1, clip_high=0.1),
    "dppo": ObjectiveChoice(proximal="behaviour", surrogate="dppo", correction=NONE, dppo_threshold=0.1),
}


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens(behaviour: Tensor, advantage: Tensor, *, lag: int = 2, sequence: list[int] | None = None) -> SampledTokens:
    numbers = torch.tensor(sequence or [0] * len(behaviour))
    return SampledTokens(behaviour, torch.full_like(numbers, lag), advantage, numbers)


@pytest.mark.parametrize("name", CHOICES)
@given(seed=st.integers(0, 10_000))
def test_the_gradient_is_the_applied_weight_times_the_advantage(name: str, seed: int):
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(12, generator=generator, dtype=torch.float64) * 3
    current = (behaviour + torch.randn(12, generator=generator, dtype=torch.float64) * 0.5).requires_grad_()
    sequence = [0] * 5 + [2] * 4 + [3] * 3
    advantage = torch.randn(4, generator=generator, dtype=torch.float64)[torch.tensor(sequence)]
    found = token_objective(current, tokens(behaviour, advantage, lag=3, sequence=sequence), CHOICES[name])
    (gradient,) = torch.autograd.grad(found.objective_N.sum(), current)
    assert torch.allclose(gradient, found.applied_N * advantage, atol=1e-12)
    assert bool((found.applied_N[found.clipped_N | found.masked_N] == 0).all())
    assert torch.allclose(found.log_ratio_N, current.detach() - behaviour)
    assert not found.applied_N.requires_grad
    assert not found.log_ratio_N.requires_grad


@pytest.mark.parametrize("name", CHOICES)
def test_identical_policies_are_not_corrected(name: str):
    current = f64(-1.0, -0.3, -2.0).requires_grad_()
    found = token_objective(current, tokens(current.detach(), f64(-1.0, -1.0, -1.0)), CHOICES[name])
    assert found.applied_N.tolist() == [1.0, 1.0, 1.0]
    assert not (found.clipped_N | found.masked_N).any()


def test_the_recomputed_proximal_is_never_clipped_but_its_weight_is():
    current = f64(-1.0).requires_grad_()
    found = token_objective(current, tokens(f64(-1.0 - math.log(10)), f64(1.0)), ObjectiveChoice())
    assert found.applied_N.tolist() == [2.0]
    assert found.log_ratio_N.exp().tolist() == pytest.approx([10.0])
    assert not found.clipped_N.any()


def test_the_interpolated_proximal_splits_the_ratio_between_clip_and_weight():
    """Lag 2: half of ln 4 is the weight, the other half the ratio that is clipped at 1.28."""
    current = f64(-1.0).requires_grad_()
    choice = ObjectiveChoice(proximal="interpolated")
    found = token_objective(current, tokens(f64(-1.0 - math.log(4)), f64(1.0), lag=2), choice)
    assert found.objective_N.tolist() == pytest.approx([2.0 * 1.28])
    assert found.clipped_N.tolist() == [True]
    assert found.applied_N.tolist() == [0.0]


def test_a_masked_sequence_is_masked_whatever_its_weight():
    choice = ObjectiveChoice(negative_sequence_nats=0.2)
    known = tokens(f64(-1.0, -1.0, -1.0), f64(-1.0, -1.0, 1.0), sequence=[0, 0, 1])
    found = token_objective(f64(-1.5, -1.2, -1.5), known, choice)
    assert found.masked_N.tolist() == [True, True, False]
    assert found.applied_N.tolist() == pytest.approx([0.0, 0.0, math.exp(-0.5)])


def test_parameters_choose_it():
    training = TrainingParameters.model_validate(
        {"surrogate": "cispo", "proximal": "behaviour", "importance": "none", "clip_low": 1, "clip_high": 4}
    )
    assert choice_of(training) == ObjectiveChoice(
        proximal="behaviour", surrogate="cispo", correction=Correction("none"), clip_low=1, clip_high=4
    )
    assert choice_of(TrainingParameters.model_validate({})) == ObjectiveChoice()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"surrogate": "gspo"}, "gspo needs training.proximal: behaviour"),
        ({"proximal": "behaviour"}, "the surrogate holds the whole ratio"),
        ({"dual_clip": 3.0}, "training.dual_clip: has no effect"),
    ],
)
def test_limits_without_effect_or_twice_are_refused(training: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        TrainingParameters.model_validate(training)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"importance": "none", "proximal": "behaviour"},
        {"importance": "none", "negative_sequence_nats": 0.1},
    ],
)
def test_truncated_sampling_is_refused_with_anything_that_reads_the_ratio(training: dict[str, Any]):
    """trl#6789: with top-p the ratio is the kept mass even for identical weights."""
    with pytest.raises(ValidationError, match=r"rollout\.top_p"):
        RunParameters.model_validate({"rollout": {"top_p": 0.9}, "training": training})
    only_importance = {"rollout": {"top_p": 0.9}, "training": {"importance": "none"}}
    with pytest.raises(ValidationError, match="limits of the section admission"):
        RunParameters.model_validate(only_importance)
    RunParameters.model_validate({**only_importance, "admission": OPEN})
