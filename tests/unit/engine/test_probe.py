"""When an engine reproduces the probe of a version."""

import math

import pytest

from driftline.engine.vllm_update import probe_difference, probe_tolerance

EXPECTED = (-0.5, -2.0, -24.0)


def test_a_likely_token_counts_in_nats() -> None:
    assert probe_difference((-0.5, -2.0003, -24.0), EXPECTED) == pytest.approx(3e-4, rel=1e-6)


def test_an_unlikely_token_counts_as_a_share_of_its_logprob() -> None:
    assert probe_difference((-0.5, -2.0, -24.0003), EXPECTED) == pytest.approx(5e-5, rel=1e-6)


def test_a_sure_policy_in_float32_is_within_the_tolerance() -> None:
    scored = tuple(value * (1 + 5e-6) for value in EXPECTED)

    assert max(abs(one - other) for one, other in zip(scored, EXPECTED, strict=True)) > 1e-4
    assert probe_difference(scored, EXPECTED) < probe_tolerance("float32", "float32")


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_logprob_that_is_no_number_is_never_within_it(place: int, value: float) -> None:
    scored = [*EXPECTED]
    scored[place] = value

    assert not probe_difference(scored, EXPECTED) <= probe_tolerance("bfloat16", "float32")
