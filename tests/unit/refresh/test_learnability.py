"""What is learned from a task by how often tasks like it are solved, and levels that bear one another out."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.refresh import learnability, strata

HALF = learnability.learnability(0.5)
counts = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda both: (float(sum(both)), float(both[0])))


@given(st.floats(0, 1), st.integers(2, 32))
def test_of_two_tasks_that_teach_as_often_the_harder_one_goes_first(share: float, members: int) -> None:
    harder, easier = sorted((share, 1 - share))
    assert 0 < learnability.learnability(easier, members) <= learnability.learnability(harder, members) <= 1


@pytest.mark.parametrize(
    ("share", "members", "value"),
    [(0.5, 2, 0.125), (0.5, 8, 0.49222), (0.2, 8, 0.55408), (1.0, 8, 1e-5), (0.0, 8, 1e-5)],
)
def test_what_is_learned(share: float, members: int, value: float) -> None:
    """(1 - 2 / 4)^2 / 2, (1 - 2 / 256)^2 / 2, (1 - 0.2^8 - 0.8^8)^2 * 0.8."""
    assert learnability.learnability(share, members) == value


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_the_chance_is_how_often_rewards_of_a_group_differ(share: float) -> None:
    """By all 2^8 outcomes of a group."""
    outcomes = product((0, 1), repeat=8)
    differ = sum(prod(share if won else 1 - share for won in group) for group in outcomes if len({*group}) == 2)
    assert learnability.learnability(share) == pytest.approx(differ**2 * (1 - share), abs=1e-5)


@given(st.lists(counts.filter(lambda both: both[0] > 0), min_size=1, max_size=12))
def test_levels_are_judged_as_rates_that_do_not_rise(seen: list[tuple[float, float]]) -> None:
    """The isotonic fit by its definition: the least of the largest means of what lies around a level."""
    padded = [(attempts + 1.0, solved + 0.5) for attempts, solved in seen]

    def rate(first: int, last: int) -> float:
        return sum(s for _, s in padded[first : last + 1]) / sum(a for a, _ in padded[first : last + 1])

    fit = [
        min(max(rate(first, last) for last in range(level, len(seen))) for first in range(level + 1))
        for level in range(len(seen))
    ]
    assert fit == sorted(fit, reverse=True)
    assert learnability.level_rates(seen) == pytest.approx(fit)


def test_a_level_that_was_not_played_is_as_likely_as_not_within_what_those_around_it_allow() -> None:
    easy, half, hard, none = (80.0, 80.0), (80.0, 40.0), (80.0, 0.0), (0.0, 0.0)
    assert learnability.level_rates([none, none]) == [0.5, 0.5]
    assert learnability.level_rates([easy, none])[1] == 0.5
    assert learnability.level_rates([none, easy])[0] == learnability.level_rates([easy])[0] > 0.99
    assert learnability.level_rates([hard, none, none])[1:] == [learnability.level_rates([hard])[0]] * 2
    assert learnability.level_rates([easy, none, hard])[1] == 0.5
    assert learnability.level_rates([half, none, half]) == [0.5] * 3


def test_strata_without_levels_stand_for_themselves_and_environments_apart() -> None:
    seen = {
        "a/v1/level 1": (8.0, 0.0),
        "a/v1/level 3": (8.0, 8.0),
        "a/v1/useful": (8.0, 4.0),
        "b/v1/level 2": (80.0, 80.0),
    }
    found = learnability.of_strata(seen)
    assert [*found] == [
        *(f"a/v1/level {level}" for level in range(4)), "a/v1/useful", *(f"b/v1/level {level}" for level in range(3)),
    ]  # fmt: skip
    assert found["a/v1/level 1"] == found["a/v1/level 2"] == found["a/v1/level 3"] == HALF, "taken together"
    assert found["b/v1/level 2"] == found["b/v1/level 0"] < 0.001, "harder ones are solved always"
    assert found["a/v1/useful"] == HALF


def test_a_name_tells_environment_and_level() -> None:
    assert strata.parts("reasoning_gym/maze/v1/level 12") == ("reasoning_gym/maze/v1", 12)
    assert strata.parts("digits/v1/too_hard") == ("digits/v1/too_hard", None)
    assert strata.parts("digits/v1") == ("digits/v1", None)
    assert strata.parts("odd/level x") == ("odd/level x", None)
