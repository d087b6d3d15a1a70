"""Summaries of parts pool to the summary of the whole."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from driftline.divergence.estimators import divergence_sums, summarise
from driftline.measured import NOTHING, pooled

log_ratios = st.lists(st.floats(-3, 3), min_size=0, max_size=20)
far_log_ratios = st.lists(st.floats(-60, 60) | st.floats(-1e38, 1e38), min_size=1, max_size=4)


@given(st.lists(log_ratios, max_size=5))
def test_pooled_parts_are_the_summary_of_the_whole(parts: list[list[float]]) -> None:
    summaries = [summarise(divergence_sums(torch.tensor(part, dtype=torch.float64))) for part in parts]
    whole = summarise(divergence_sums(torch.tensor([x for part in parts for x in part], dtype=torch.float64)))
    found = pooled(summaries)
    for field in fields(whole):
        expected = getattr(whole, field.name)
        assert getattr(found, field.name) == pytest.approx(expected, rel=1e-6, abs=1e-6), field.name


def test_nothing_pools_to_nothing() -> None:
    assert pooled([]) == NOTHING
    assert pooled([NOTHING, NOTHING]) == NOTHING


@given(st.lists(far_log_ratios, min_size=1, max_size=4))
@example([[-25.0]])  # 1 + chi-square of its tiny ratio is 0
def test_policies_that_are_far_apart_pool_too(parts: list[list[float]]) -> None:
    summaries = [summarise(divergence_sums(torch.tensor(part, dtype=torch.float64))) for part in parts]
    whole = summarise(divergence_sums(torch.tensor([x for part in parts for x in part], dtype=torch.float64)))
    found = pooled(summaries)
    assert found.k3 == pytest.approx(whole.k3, rel=1e-6)
    assert found.ess_fraction == pytest.approx(whole.ess_fraction, rel=1e-6)


def test_figures_that_no_run_has_pool_without_an_error() -> None:
    """As of a record with a changed digit: whoever reads it goes on."""
    odd = replace(NOTHING, tokens=3, k3=1e200, k3_error=1e200, chi_square=-1.0, ess_fraction=0.0)
    assert pooled([odd, odd]).k3 == 1e200
    assert pooled([odd]).ess_fraction == 0.0
