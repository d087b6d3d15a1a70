"""Divergence of one trajectory, and how it is spread over several."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from driftline.divergence import estimators
from driftline.divergence.trajectories import spread
from driftline.errors import DriftlineError, LogprobsNotFinite
from driftline.measured import NOTHING, DivergenceSummary


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of_tokens(*ratios: float) -> DivergenceSummary:
    """A trajectory with these ratios of its tokens."""
    return estimators.summarise(estimators.divergence_sums(f64(*ratios).log()))


def test_one_trajectory_by_hand():
    found = of_tokens(2.0, 0.5, 4.0)
    assert found.k1 == pytest.approx(-math.log(4) / 3)
    assert found.k3 == pytest.approx((6.5 - 3 - math.log(4)) / 3)
    assert found.ess == pytest.approx(6.5**2 / 20.25)
    assert found.sequence_ratio == pytest.approx(4.0)
    assert found.geometric_mean_ratio == pytest.approx(4.0 ** (1 / 3))


def test_one_trajectory_that_is_far_off_shows_in_the_upper_tail_alone():
    near, far = of_tokens(1.0, 1.0), of_tokens(*[math.e] * 3)
    found = spread([near] * 9 + [far])
    assert found is not None
    k3 = math.e - 2
    assert found.k3_nats == pytest.approx((0.0, 0.1 * k3, 0.91 * k3)), "interpolated between the ninth and the tenth"
    assert found.geometric_mean_ratio == pytest.approx((1.0, 1.0, 1 + 0.91 * (math.e - 1)))
    assert found.sequence_ratio == pytest.approx((1.0, 1.0, 1 + 0.91 * (math.e**3 - 1)))


def test_a_trajectory_that_became_unlikely_shows_in_the_lower_tail():
    found = spread([of_tokens(1.0), of_tokens(0.5, 0.5), of_tokens(1.0, 1.0)])
    assert found is not None
    assert found.geometric_mean_ratio[0] == pytest.approx(0.5 + 0.02 * 0.5)
    assert found.sequence_ratio[0] == pytest.approx(0.25 + 0.02 * 0.75)


def test_each_trajectory_counts_once_however_long_it_is():
    found = spread([of_tokens(*[4.0] * 1000), of_tokens(1.0), of_tokens(1.0)])
    assert found is not None
    assert found.k3_nats[0] == 0.0
    assert found.sequence_ratio[2] < math.exp(20), "within what a ratio is clamped to"


def test_without_a_sampled_token_there_is_no_spread():
    assert spread([]) is None
    assert spread([NOTHING, NOTHING]) is None
    assert spread([NOTHING, of_tokens(2.0)]) == spread([of_tokens(2.0)])


def test_the_error_is_typed_and_travels():
    error = LogprobsNotFinite("group 1 member 0: ...")
    assert isinstance(error, DriftlineError)
    assert isinstance(error, ValueError)
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_log_ratios_are_clamped_before_they_are_exponentiated_and_only_there():
    found = estimators.summarise(estimators.divergence_sums(f64(-1000.0, 1000.0)))
    assert found.k1 == 0.0
    assert found.k2 == 500_000.0
    assert found.ratio_mean == pytest.approx(math.exp(20) / 2)
    assert math.isfinite(found.chi_square)
    assert found.k3 == pytest.approx((math.exp(20) - 1 - 1000 + 999) / 2)
    assert estimators.sequence_ratio(f64(30.0, 30.0)) == pytest.approx(math.exp(20))


def test_the_standard_error_of_k3():
    values = f64(0.5, -0.3, 0.1, 0.0)
    found = estimators.summarise(estimators.divergence_sums(values))
    each = estimators.k3(values)
    assert found.k3_error == pytest.approx(float(each.std(correction=1)) / 2)
    assert estimators.summarise(estimators.divergence_sums(f64(0.5))).k3_error == 0.0


def test_the_floor_of_fp32_is_not_lost_in_rounding():
    found = estimators.summarise(estimators.divergence_sums(torch.full((10_000,), 1e-6)))
    assert found.k3 == pytest.approx(5e-13, rel=1e-3)


def test_quantiles():
    assert estimators.quantiles(f64(4.0, 1.0, 3.0, 2.0, 0.0), (0.0, 0.5, 1.0)) == (0.0, 2.0, 4.0)
    assert estimators.quantiles(f64(), (0.5,)) == (0.0,)
