from __future__ import annotations

from random import Random

import pytest

from driftline.environment import resolve
from driftline.errors import ConfigurationError, EnvironmentFailed
from environments.arithmetic import Arithmetic

FAMILY = Arithmetic()


def test_it_is_registered() -> None:
    assert resolve("arithmetic/v1") == FAMILY
    assert FAMILY.alphabet is None
    assert FAMILY.demonstrate(FAMILY.generate(0, 1)[0], Random(0)) is None


def test_tasks_are_distinct_right_and_a_function_of_the_seed() -> None:
    tasks = FAMILY.generate(3, 800)
    assert len({task.id for task in tasks}) == 800
    assert FAMILY.generate(3, 800) == tasks != FAMILY.generate(4, 800)
    for task in tasks[:500]:
        words = task.payload["question"].removeprefix("What is ").partition("?")[0].split()
        left, right = int(words[0]), int(words[2])
        assert task.payload["answer"] == (left + right if words[1] == "+" else left - right)
    with pytest.raises(ConfigurationError, match="800 tasks, not 801"):
        FAMILY.generate(3, 801)


@pytest.mark.parametrize(
    ("answer", "reply", "reward"),
    [
        (7, "7", 1.0),
        (7, "3 + 4 = 7.", 1.0),
        (7, "The answer is 7, of course", 1.0),
        (-3, "-3", 1.0),
        (7, "77", 0.1),
        (7, " 17\n", 0.1),
        (7, "7.5", 0.0),
        (3, "-3", 0.1),
        (3, "It is -3", 0.0),
        (7, "7 or 8", 0.0),
        (7, "seven", 0.0),
        (7, "", 0.0),
    ],
)
async def test_the_last_whole_number_is_judged(answer: int, reply: str, reward: float) -> None:
    task = next(task for task in FAMILY.generate(1, 800) if task.payload["answer"] == answer)
    game = FAMILY.make(max_turns=4)
    (prompt,) = await game.reset(task, 0)
    assert prompt.content == task.payload["question"]
    result = await game.step(reply)
    assert (result.reward, result.success, result.terminated) == (reward, reward == 1.0, True)
    with pytest.raises(EnvironmentFailed):
        await game.step(reply)
    await game.close()


async def test_the_oracle_is_right() -> None:
    for task in FAMILY.generate(2, 50):
        game = FAMILY.make()
        await game.reset(task, 0)
        assert (await game.step(FAMILY.oracle(task)[0])).reward == 1.0
