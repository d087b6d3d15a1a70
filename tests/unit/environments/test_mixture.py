"""Several families as one: named in one string, drawn by their shares, played each by its own."""

from __future__ import annotations

from collections import Counter

import pytest

from driftline.environment import Mixture, family_named, named_parts, parts_of, resolve, shared
from driftline.errors import ConfigurationError
from environments.arithmetic import Arithmetic
from environments.pointer_chase import PointerChase

BOTH = "pointer_chase/v1 * 3 + arithmetic/v1"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/v1", [("a/v1", 1.0)]),
        ("a/v1 + b/v1", [("a/v1", 0.5), ("b/v1", 0.5)]),
        (BOTH, [("pointer_chase/v1", 0.75), ("arithmetic/v1", 0.25)]),
        ("a/v1 * 0.5 + my.module:Family * 1.5", [("a/v1", 0.25), ("my.module:Family", 0.75)]),
        ("openenv/http://a:80/x+y*z/v1", [("openenv/http://a:80/x+y*z/v1", 1.0)]),
    ],
)
def test_a_name_says_which_families_are_mixed_and_with_what_shares(name: str, parts: list[tuple[str, float]]):
    assert named_parts(name) == parts


@pytest.mark.parametrize(
    "name", ["a/v1 +", "a/v1 * + b", "a/v1 * x + b", "a/v1 * 0 + b", "a/v1 * 1 * 2", "a * -1 + b"]
)
def test_what_is_no_mixture_is_refused_with_an_example(name: str):
    with pytest.raises(ConfigurationError, match=r"environment\.id: .* is no mixture .*pointer_chase/v1 \* 3"):
        named_parts(name)


def test_a_family_is_in_a_mixture_once_and_is_known():
    with pytest.raises(ConfigurationError, match="'arithmetic/v1' is in the mixture twice"):
        resolve("arithmetic/v1 + arithmetic/v1 * 2")
    with pytest.raises(ConfigurationError, match="did you mean 'arithmetic/v1'"):
        resolve("pointer_chase/v1 + arithmetics/v1")


def test_tasks_are_drawn_by_the_shares_in_turn_and_keep_the_environment_of_their_part():
    family = resolve(BOTH)
    tasks = family.generate(7, 40)
    assert [task.id for task in tasks] == [task.id for task in resolve(BOTH).generate(7, 40)]
    assert Counter(task.environment for task in tasks) == {"pointer_chase/v1": 30, "arithmetic/v1": 10}
    assert Counter(task.environment for task in tasks[:20]) == {"pointer_chase/v1": 15, "arithmetic/v1": 5}
    assert {task.id for task in tasks} >= {task.id for task in Arithmetic().generate(7, 10)}
    assert len({task.id for task in tasks}) == 40


async def test_every_task_is_played_by_its_own_family():
    family = resolve(BOTH)
    environment = family.make(max_turns=20)
    for task in family.generate(3, 12):
        actions = family.oracle(task)
        assert actions
        await environment.reset(task, 0)
        result = None
        for action in actions:
            result = await environment.step(action)
        assert result is not None
        assert result.success
        assert result.reward == 1.0
    await environment.close()
    await environment.close()


def test_what_all_parts_share_is_the_mixtures():
    family = resolve(BOTH)
    assert isinstance(family, Mixture)
    assert family.id == "pointer_chase/v1 + arithmetic/v1"
    assert family.alphabet is None, "one of them has none"
    assert family.stop == "\n"
    assert [part.name for part in parts_of(family, BOTH)] == ["pointer_chase/v1", "arithmetic/v1"]
    assert family_named(family, "arithmetic/v1").id == "arithmetic/v1"
    both = resolve("pointer_chase/v1 + tests.support.environments:Dice")
    assert both.alphabet == PointerChase().alphabet
    alone = resolve("arithmetic/v1")
    assert [(part.name, part.family, part.share) for part in parts_of(alone, "x")] == [("x", alone, 1.0)]
    assert family_named(alone, "whatever") is alone
    with pytest.raises(ConfigurationError, match="'other/v1' is no part of"):
        family.of("other/v1")


def test_shares_are_rounded_to_what_is_there():
    assert shared(10, [0.75, 0.25]) == [8, 2]
    assert shared(1, [0.5, 0.5]) == [1, 0]
    assert shared(7, [1.0]) == [7]
    assert sum(shared(1000, [1 / 3, 1 / 3, 1 / 3])) == 1000
