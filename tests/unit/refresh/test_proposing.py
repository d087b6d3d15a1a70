"""Proposing: windows of seeds, and levels chosen by what the policy solves."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from driftline.environment import Task
from driftline.errors import ConfigurationError
from driftline.refresh import proposing
from driftline.refresh.proposing import Window
from driftline.refresh.solving import SolveRate
from environments import FAMILIES
from environments.pointer_chase import PointerChase

FAMILY = PointerChase()


def test_windows_cover_what_is_asked_for_and_differ() -> None:
    found = proposing.windows(FAMILY.id, 7, 2500, size=1000)
    assert [window.count for window in found] == [1000, 1000, 500]
    assert len({window.seed for window in found}) == 3
    assert found == proposing.windows(FAMILY.id, 7, 2500, size=1000)
    assert {window.seed for window in found}.isdisjoint(
        window.seed for window in proposing.windows(FAMILY.id, 8, 2500, size=1000)
    )


def test_windows_by_level_propose_tasks_of_that_level() -> None:
    found = proposing.windows(FAMILY.id, 7, 0, size=20, levels={0: 5, 3: 30})
    assert [(window.level, window.count) for window in found] == [(0, 5), (3, 20), (3, 10)]
    assert len({window.seed for window in found}) == 3
    tasks = list(chain.from_iterable(proposing.propose(FAMILY, window) for window in found))
    assert [FAMILY.level_of(task) for task in tasks] == [0] * 5 + [3] * 30
    assert len({task.id for task in tasks}) == 35


def test_a_level_gives_what_it_has_and_one_that_is_not_there_is_refused() -> None:
    """Of `reasoning_gym/game_of_life_halting/v1`, level 3 has about five tasks."""

    class Few(PointerChase):
        def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
            if level == 0 and count > 4:
                raise ConfigurationError(f"level 0 has 4 tasks, not {count}")
            return super().generate_level(level, seed, count)

    assert [len(proposing.propose(Few(), Window(FAMILY.id, 5, 50, level))) for level in (0, 1)] == [3, 50]
    with pytest.raises(ConfigurationError, match="no level 16"):
        proposing.propose(Few(), Window(FAMILY.id, 5, 50, 16))


def test_a_window_is_a_pure_function() -> None:
    window = Window(FAMILY.id, 5, 50, 2)
    assert proposing.propose(FAMILY, window) == proposing.propose(FAMILY, window)


class OutOfTasks(PointerChase):
    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        return random.Random(seed).sample([], count)


def test_what_a_family_raises_at_a_level_names_level_and_parameter() -> None:
    told = r"^proposals: pointer_chase/v1 does not give 1 distinct task of level 2 \(ValueError: Sample larger"
    with pytest.raises(ConfigurationError, match=told):
        proposing.propose(OutOfTasks(), Window(FAMILY.id, 5, 5, 2), "proposals")
    with pytest.raises(ConfigurationError, match=r"of level 16 \(pointer_chase/v1 has no level 16"):
        proposing.propose(FAMILY, Window(FAMILY.id, 5, 5, 16), "proposals")


def test_families_say_whether_they_have_levels() -> None:
    assert proposing.graded(FAMILY)
    assert not proposing.graded(FAMILIES["arithmetic/v1"])
    with pytest.raises(ConfigurationError, match="no level 16"):
        FAMILY.generate_level(16, 0, 1)


def test_most_proposals_are_of_the_levels_that_the_policy_sometimes_solves() -> None:
    rates = {0: SolveRate(80, 80), 1: SolveRate(80, 40), 2: SolveRate(80, 0)}
    assert proposing.spread(100, 5, rates) == {0: 5, 1: 79, 2: 6, 3: 5, 4: 5}
    few = {level: SolveRate(rate.attempts // 10, rate.solved // 10) for level, rate in rates.items()}
    assert proposing.spread(100, 5, few) == {0: 5, 1: 47, 2: 16, 3: 16, 4: 16}, "of few episodes less is known"


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({}, {0: 4, 1: 3, 2: 3}),
        ({level: SolveRate(4, 2) for level in range(3)}, {0: 4, 1: 3, 2: 3}),
    ],
)
def test_where_nothing_tells_levels_apart_all_get_the_same(
    rates: dict[int, SolveRate], expected: dict[int, int]
) -> None:
    assert proposing.spread(10, 3, rates) == expected


def test_levels_beyond_those_that_are_never_solved_are_not_expected_to_be() -> None:
    found = proposing.spread(100, 4, {0: SolveRate(8, 4), 1: SolveRate(40, 0)})
    assert found == {0: 77, 1: 8, 2: 8, 3: 7}


def test_a_level_of_which_nothing_is_known_comes_before_those_that_are_solved() -> None:
    found = proposing.spread(100, 3, {0: SolveRate(40, 40), 1: SolveRate(40, 40)})
    assert found[2] > 70
