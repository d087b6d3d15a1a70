"""Busy and idle seconds always add up to the wall clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.tracking.intervals import clip, complement, seconds, union, usage

INTERVALS = st.lists(st.tuples(st.integers(-50, 150), st.integers(-50, 150)), max_size=20)


def test_union_by_hand() -> None:
    assert union([(5, 7), (1, 3), (2, 4), (9, 9), (8, 6)]) == [(1, 4), (5, 7)]
    assert union([(1, 4), (5, 7)], gap_s=1) == [(1, 7)]
    assert union([(1, 4), (4, 7)]) == [(1, 7)]


def test_clip_and_complement_by_hand() -> None:
    assert clip([(0, 2), (3, 9), (12, 14)], 1, 10) == [(1, 2), (3, 9)]
    assert complement([(0, 2), (3, 9), (8, 9)], 1, 10) == [(2, 3), (9, 10)]
    assert complement([], 1, 10) == [(1, 10)]
    assert complement([(0, 20)], 1, 10) == []


def test_usage_by_hand() -> None:
    found = usage([(0, 2), (1, 3), (8, 30)], 1, 11)
    assert (found.busy_s, found.wall_s, found.idle_s, found.idle_share) == (5, 10, 5, 0.5)
    assert usage([(0, 2)], 5, 5).idle_share is None


@given(intervals=INTERVALS, start=st.integers(0, 100), length=st.integers(1, 100))
def test_idle_share_is_bounded_and_sums_to_the_wall_clock(
    intervals: list[tuple[int, int]], start: int, length: int
) -> None:
    """verl#6693, verl#6069: idle ratios near 0 or above 1, from summing concurrent work."""
    found = usage(intervals, start, start + length)
    assert found.idle_share is not None
    assert 0 <= found.idle_share <= 1
    assert found.busy_s + found.idle_s == found.wall_s == length
    # Second by second, counted the slow way.
    busy = sum(any(a <= t and t + 1 <= b for a, b in intervals) for t in range(start, start + length))
    assert found.busy_s == busy
    assert seconds(complement(intervals, start, start + length)) == pytest.approx(found.idle_s)
