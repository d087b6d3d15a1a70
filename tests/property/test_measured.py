"""Summaries of parts pool to the summary of the whole."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftline.divergence.estimators import divergence_sums, summarise
from driftline.measured import NOTHING, pooled

log_ratios = st.lists(st.floats(-3, 3), min_size=0, max_size=20)


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
