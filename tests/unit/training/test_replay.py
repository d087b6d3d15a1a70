"""How much a replayed figure may differ: as much as its own log-probabilities explain, and no more."""

from __future__ import annotations

import math

import pytest
import torch

from driftline.divergence.estimators import divergence_sums, summarise
from driftline.measured import DivergenceSummary
from driftline.tracking import metrics
from driftline.training.replay import COARSE, EXACT, OTHER_ORDER, Figure, allowed


def estimates(found: DivergenceSummary) -> dict[str, float]:
    return {
        metrics.K1: found.k1,
        metrics.K2: found.k2,
        metrics.K3: found.k3,
    }


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-3, 0.1, 2.0])
@pytest.mark.parametrize("tolerance", [EXACT, OTHER_ORDER, COARSE])
def test_what_errors_of_that_size_make_of_the_estimates_is_allowed(size: float, tolerance: float):
    generator = torch.Generator().manual_seed(7)
    log_ratio = size * torch.randn(2000, generator=generator, dtype=torch.float64)
    recorded = estimates(summarise(divergence_sums(log_ratio)))
    for error in (
        torch.full((2000,), tolerance, dtype=torch.float64),
        tolerance * (2 * torch.rand(2000, generator=generator, dtype=torch.float64) - 1),
        tolerance * log_ratio.sign(),
    ):
        replayed = estimates(summarise(divergence_sums(log_ratio + error)))
        for name, value in recorded.items():
            assert Figure(name, value, replayed[name]).agrees(tolerance * 1.01), (name, size)


def test_other_weights_are_noticed_where_divergence_is_small():
    """A fixed 0.05 would let a k3 of 0.01 pass for one of 0.05, and any weights of a run near its floor."""
    for recorded, replayed, tolerance in ((1e-2, 5e-2, COARSE), (1e-3, 1e-2, COARSE), (1e-7, 1e-6, EXACT)):
        assert not Figure(metrics.K3, recorded, replayed).agrees(tolerance)
        assert not Figure(metrics.K2, recorded, replayed).agrees(tolerance)
    assert not Figure(metrics.GRADIENT_NORM, 0.02, 0.03).agrees(COARSE)
    assert Figure(metrics.GRADIENT_NORM, 0.02, 0.0205).agrees(COARSE)


def test_a_loss_near_zero_has_the_tolerance_of_its_terms():
    assert Figure(metrics.LOSS, 0.0, 9e-6).agrees(EXACT)
    assert not Figure(metrics.LOSS, 0.0, 2e-5).agrees(EXACT)
    assert Figure(metrics.ENTROPY, 3.0, 3.0 + 2.9e-5).agrees(EXACT)


def test_what_is_no_number_agrees_with_nothing():
    assert not Figure(metrics.K3, 1e-3, math.nan).agrees(COARSE)
    assert allowed(metrics.K3, 0.0, EXACT) == pytest.approx(EXACT**2)
