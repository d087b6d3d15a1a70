"""Corrections over packed sequences, against hand-computed weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from driftline.divergence.corrections import (
    Correction,
    CorrectionKind,
    importance_weights,
    interpolated_proximal,
    negative_sequence_mask,
    sequence_means,
    sequence_totals,
)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


RATIOS = f64(2.0, 0.5, 3.0, 0.1, 0.9)
SEQUENCES = torch.tensor([4, 4, 4, 1, 1])
WEIGHTS: dict[CorrectionKind, tuple[list[float], list[bool]]] = {
    "none": ([1.0] * 5, [False] * 5),
    "token_truncated": ([1.5, 0.5, 1.5, 0.1, 0.9], [False] * 5),
    "sequence_truncated": ([1.5, 1.5, 1.5, 0.09, 0.09], [False] * 5),
    "icepop": ([2.0, 0.5, 0.0, 0.0, 0.9], [False, False, True, True, False]),
    # Geometric means 1.44 and 0.3.
    "geometric_rejection": ([1.5, 0.5, 1.5, 0.0, 0.0], [False, False, False, True, True]),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_of_packed_sequences(kind: CorrectionKind):
    applied, masked = WEIGHTS[kind]
    found = importance_weights(RATIOS.log(), SEQUENCES, Correction(kind, cap=1.5, low=0.4, high=2.5))
    assert found.raw_T.tolist() == pytest.approx(RATIOS.tolist())
    assert found.applied_T.tolist() == pytest.approx(applied)
    assert found.masked_T.tolist() == masked


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_do_not_depend_on_the_order_of_tokens(kind: CorrectionKind):
    correction = Correction(kind, cap=1.5, low=0.4, high=2.5)
    order = torch.tensor([3, 0, 4, 2, 1])
    found = importance_weights(RATIOS.log()[order], SEQUENCES[order], correction)
    whole = importance_weights(RATIOS.log(), SEQUENCES, correction)
    assert torch.allclose(found.applied_T, whole.applied_T[order])


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_are_detached_and_survive_extremes(kind: CorrectionKind):
    log_ratio = f64(-500.0, 500.0, 0.0).requires_grad_()
    found = importance_weights(log_ratio, torch.tensor([0, 0, 1]), Correction(kind))
    assert not found.applied_T.requires_grad
    assert not found.raw_T.requires_grad
    assert bool(torch.isfinite(found.applied_T).all())
    assert bool((found.applied_T <= found.raw_T.clamp(min=1.0)).all())


def test_no_tokens_are_no_problem():
    found = importance_weights(f64(), torch.tensor([], dtype=torch.long), Correction("sequence_truncated"))
    assert found.applied_T.shape == (0,)


def test_totals_and_means():
    assert sequence_totals(f64(1, 2, 3, 4, 5), SEQUENCES).tolist() == [6, 6, 6, 9, 9]
    assert sequence_means(f64(1, 2, 3, 4, 5), SEQUENCES).tolist() == [2, 2, 2, 4.5, 4.5]


def test_only_distant_sequences_with_a_negative_advantage_are_masked():
    log_ratio = f64(-0.2, -0.4, 0.5, -2.0, -2.0)
    advantage = f64(-1.0, -1.0, -1.0, 1.0, 1.0)
    found = negative_sequence_mask(log_ratio, advantage, torch.tensor([0, 0, 1, 2, 2]), 0.25)
    assert found.tolist() == [True, True, False, False, False]
    assert not negative_sequence_mask(log_ratio, advantage, torch.tensor([0, 0, 1, 2, 2]), 0.3001).any()


def test_the_interpolated_policy_travels_with_the_version():
    current, behaviour = f64(-1.0).expand(5), f64(-2.0).expand(5)
    found = interpolated_proximal(
        current,
        behaviour,
        current_version=5,
        proximal_version=4,
        behaviour_version=torch.tensor([6, 5, 4, 3, 1]),
    )
    assert found.tolist() == pytest.approx([-2.0, -2.0, -2.0, -1.5, -1.25])
