"""The target band: pools, weights, what is retired and what is kept."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.environment import Task
from driftline.refresh import curating, solving
from driftline.refresh.curating import CurationRules
from driftline.refresh.solving import SolveRate

RULES = CurationRules()


def tasks(count: int, first: int = 0) -> list[Task]:
    return [Task.create("t/v1", {"n": n}) for n in range(first, first + count)]


@pytest.mark.parametrize(
    ("rate", "pool"),
    [
        (None, "unmeasured"),
        (SolveRate(3, 3), "unmeasured"),
        (SolveRate(4, 2), "useful"),
        (SolveRate(4, 4), None),
        (SolveRate(8, 8), None),
        (SolveRate(8, 7), "too_easy"),
        (SolveRate(10, 8), "useful"),
        (SolveRate(10, 2), "useful"),
        (SolveRate(8, 1), "too_hard"),
        (SolveRate(8, 0), "too_hard"),
    ],
)
def test_pools_by_solve_rate(rate: SolveRate | None, pool: str | None) -> None:
    assert curating.pool_of(rate, RULES) == pool


def test_always_solved_is_retired_and_a_share_of_never_solved_is_kept() -> None:
    """prime-rl#2916: solved tasks sampled on and on."""
    parent = tasks(40)
    rates = {task.id: SolveRate(8, 8 if n < 10 else 0 if n < 30 else 4) for n, task in enumerate(parent)}
    found = curating.curate(parent, [], rates, size=40, rules=RULES, seed=0)
    assert Counter(found.pools.values()) == {"useful": 10, "too_hard": 4}
    assert Counter(change.reason for change in found.went) == {curating.ALWAYS_SOLVED: 10, curating.NEVER_SOLVED: 16}
    assert found.came == ()
    assert found.weights == pytest.approx({"useful": 0.7 / 0.75, "too_hard": 0.05 / 0.75})


def test_the_useful_fill_a_version_first() -> None:
    parent, new = tasks(4), tasks(4, first=4)
    rates = {task.id: SolveRate(8, 4) for task in new} | {parent[0].id: SolveRate(8, 7)}
    found = curating.curate(parent, new, rates, size=5, rules=RULES, seed=0)
    assert {task.id for task in new} <= found.pools.keys()
    assert Counter(found.pools.values()) == {"useful": 4, "unmeasured": 1}
    assert {change.reason for change in found.came} == {"solved 4 of 8"}
    assert [change.reason for change in found.went] == [curating.NO_ROOM] * 3


def test_the_seed_decides_among_those_alike_and_the_order_given_does_not() -> None:
    parent = tasks(30)
    one, same, other = (
        curating.curate(given, [], {}, size=10, rules=RULES, seed=seed)
        for given, seed in ((parent, 1), (parent[::-1], 1), (parent, 2))
    )
    assert one.pools == same.pools
    assert one.pools != other.pools


def test_nothing_is_left_where_all_is_always_solved() -> None:
    parent = tasks(3)
    found = curating.curate(parent, [], {t.id: SolveRate(8, 8) for t in parent}, size=3, rules=RULES, seed=0)
    assert (found.pools, found.weights) == ({}, {})


@given(st.dictionaries(st.sampled_from(curating.POOLS), st.integers(0, 5)))
def test_weights_are_a_distribution_over_the_pools_that_hold_tasks(counts: dict[curating.Pool, int]) -> None:
    found = curating.weights_of(counts, RULES)
    assert found.keys() == {pool for pool, count in counts.items() if count}
    assert not found or sum(found.values()) == pytest.approx(1.0)


def test_solve_rates_add_up() -> None:
    rates = solving.merged({"b": SolveRate(1, 1)}, {"a": SolveRate(1, 0), "b": SolveRate(1, 0)})
    assert list(rates.items()) == [("a", SolveRate(1, 0)), ("b", SolveRate(2, 1))]
    assert solving.by_level(rates, {"a": 2, "b": 2}) == {2: SolveRate(3, 1)}
    assert SolveRate().share == 0.0


@pytest.mark.parametrize(
    ("level", "pool"),
    [
        (None, "unmeasured"),
        (SolveRate(31, 15), "unmeasured"),
        (SolveRate(32, 32), "too_easy"),
        (SolveRate(40, 20), "useful"),
        (SolveRate(40, 0), "too_hard"),
    ],
)
def test_what_was_not_measured_is_expected_to_be_like_its_level(level: SolveRate | None, pool: str) -> None:
    new = tasks(1)
    expected = {new[0].id: level} if level is not None else {}
    found = curating.curate([], new, {}, size=10, rules=RULES, seed=0, expected=expected)
    assert found.pools == {new[0].id: pool}
    measured = curating.curate([], new, {new[0].id: SolveRate(8, 4)}, size=10, rules=RULES, seed=0, expected=expected)
    assert measured.pools == {new[0].id: "useful"}
