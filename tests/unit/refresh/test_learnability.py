"""What is learned from a task by how often tasks like it are solved, and levels that bear one another out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.refresh import learnability, strata

counts = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda both: (float(sum(both)), float(both[0])))


@given(st.floats(0, 1))
def test_most_is_learned_where_half_is_solved(share: float) -> None:
    found = learnability.learnability(share)
    assert 0 < found <= learnability.learnability(0.5) == 1
    assert found == pytest.approx(learnability.learnability(1 - share), abs=1e-5)


@pytest.mark.parametrize(("share", "value"), [(0.5, 1.0), (0.2, 0.26214), (0.9, 0.04666), (1.0, 1e-5)])
def test_what_is_learned(share: float, value: float) -> None:
    """(4 * 0.2 * 0.8)^3, (4 * 0.9 * 0.1)^3."""
    assert learnability.learnability(share) == value


@given(st.lists(counts, min_size=1, max_size=12))
def test_levels_are_judged_as_rates_that_do_not_rise(seen: list[tuple[float, float]]) -> None:
    """The isotonic fit by its definition: the largest of the least means of what lies around a level."""
    padded = [(attempts + 1.0, solved + 0.5) for attempts, solved in seen]

    def rate(first: int, last: int) -> float:
        return sum(s for _, s in padded[first : last + 1]) / sum(a for a, _ in padded[first : last + 1])

    fit = [
        min(max(rate(first, last) for last in range(level, len(seen))) for first in range(level + 1))
        for level in range(len(seen))
    ]
    assert fit == sorted(fit, reverse=True)
    assert learnability.of_levels(seen) == pytest.approx([learnability.learnability(one) for one in fit], abs=1e-5)


def test_strata_without_levels_stand_for_themselves_and_environments_apart() -> None:
    seen = {
        "a/v1/level 2": (8.0, 0.0),
        "a/v1/level 10": (8.0, 8.0),
        "b/v1/level 2": (8.0, 8.0),
        "a/v1/useful": (8.0, 4.0),
    }
    found = learnability.of_strata(seen)
    assert found["a/v1/level 2"] == found["a/v1/level 10"] == 1.0, "against their order, they are taken together"
    assert found["b/v1/level 2"] < 0.05
    assert found["a/v1/useful"] == 1.0
    assert [*found] == sorted(seen)


def test_a_name_tells_environment_and_level() -> None:
    assert strata.parts("reasoning_gym/maze/v1/level 12") == ("reasoning_gym/maze/v1", 12)
    assert strata.parts("digits/v1/too_hard") == ("digits/v1/too_hard", None)
    assert strata.parts("digits/v1") == ("digits/v1", None)
    assert strata.parts("odd/level x") == ("odd/level x", None)
