"""Divergence of trajectories, and of their divisions; one bad number fails one trajectory."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from driftline.divergence import estimators
from driftline.divergence.trajectories import (
    ScoredTrajectory,
    by_lag,
    divided,
    measure,
    measure_all,
    of_all,
)
from driftline.errors import DriftlineError, LogprobsNotFinite


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scored(
    name: str, ratios: list[float], lags: list[int] | None = None, environment: str = "a/v1"
) -> ScoredTrajectory:
    behaviour = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    current = behaviour + f64(*ratios).log()
    return ScoredTrajectory(name, environment, behaviour, current, torch.tensor(lags or [0] * len(ratios)))


def test_one_trajectory_by_hand():
    found = measure(scored("t", [2.0, 0.5, 1.0], [3, 1, 1]))
    assert found.lag_max == 3
    assert found.summary.tokens == 3
    assert found.summary.k1 == pytest.approx(0.0)
    assert found.summary.k3 == pytest.approx((1 - math.log(2) + math.log(2) - 0.5) / 3)
    assert found.summary.ess == pytest.approx(3.5**2 / 5.25)
    assert found.summary.sequence_ratio == pytest.approx(1.0)
    assert found.log_ratio_quantiles[0] == pytest.approx(math.log(2))


def test_parts_add_up_to_the_whole():
    measured = [
        measure(scored("t0", [2.0, 1.0], [0, 2])),
        measure(scored("t1", [4.0], [2], environment="b/v1")),
        measure(scored("t2", [0.5, 0.25], [0, 0])),
    ]
    whole = of_all(measured)
    assert whole.tokens == 5
    assert whole.ratio_mean == pytest.approx((2 + 1 + 4 + 0.5 + 0.25) / 5)
    lags = by_lag(measured)
    assert list(lags) == [0, 2]
    assert lags[0].ratio_mean == pytest.approx((2 + 0.5 + 0.25) / 3)
    assert lags[2].ratio_mean == pytest.approx((1 + 4) / 2)
    environments = divided(measured, lambda one: one.environment)
    assert {name: found.tokens for name, found in environments.items()} == {"a/v1": 4, "b/v1": 1}
    assert environments["b/v1"].ratio_mean == pytest.approx(4.0)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("policy", ["behaviour_T", "current_T"])
def test_a_bad_number_fails_its_trajectory_by_name(bad: float, policy: str):
    good, other = scored("group 4 member 1", [1.0, 2.0]), scored("group 4 member 2", [1.0, 2.0])
    getattr(other, policy)[1] = bad
    measured, failed = measure_all([good, other])
    assert [one.name for one in measured] == ["group 4 member 1"]
    assert list(failed) == ["group 4 member 2"]
    message = str(failed["group 4 member 2"])
    assert message.startswith(f"group 4 member 2: the {policy.removesuffix('_T')} policy's log-probability")
    assert "token 1" in message


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
