from __future__ import annotations

import re
import subprocess
import sys
from random import Random
from statistics import mean

import pytest

from driftline.environment import Task, TaskFamily, resolve
from driftline.errors import ConfigurationError, EnvironmentFailed
from environments import FAMILIES
from environments.pointer_chase import PointerChase

FAMILY = PointerChase()
TASKS = FAMILY.generate(7, 2000)
CHAIN = Task.create(FAMILY.id, {"start": "ab", "files": {"ab": "cd", "cd": "42", "zz": "07"}})


async def play(task: Task, actions: list[str], *, max_turns: int = 20) -> tuple[list[str], list[float | None]]:
    """Observations (the prompt's first) and rewards of an episode."""
    game = FAMILY.make(max_turns=max_turns)
    said = [message.content for message in await game.reset(task, 0)]
    rewards: list[float | None] = []
    for action in actions:
        result = await game.step(action)
        said += [message.content for message in result.messages]
        rewards.append(result.reward)
    await game.close()
    return said, rewards


def test_it_is_found_by_its_id_and_by_its_path() -> None:
    assert resolve("pointer_chase/v1") == FAMILY
    assert resolve("environments.pointer_chase:PointerChase") == FAMILY
    assert isinstance(FAMILY, TaskFamily)
    with pytest.raises(ConfigurationError, match="did you mean 'pointer_chase/v1'"):
        resolve("pointer-chase/v1")
    assert all(family.id == name for name, family in FAMILIES.items())


async def test_reading_on_until_the_answer_is_found_and_given() -> None:
    said, rewards = await play(CHAIN, [">ab", ">cd", "=42"])
    assert said == ["?ab\n", ":cd\n", "=42\n"]
    assert rewards == [None, None, 1.0]


async def test_a_wrong_answer_ends_it_with_nothing() -> None:
    game = FAMILY.make()
    await game.reset(CHAIN, 0)
    result = await game.step("=43\n")
    assert (result.reward, result.terminated, result.truncated, result.success) == (0.0, True, False, False)
    with pytest.raises(EnvironmentFailed, match="reset"):
        await game.step(">ab")


@pytest.mark.parametrize("action", ["", "ab", ">a", ">abc", "=4", "=420", ">AB", "=٤٢", ">ab\n\n", "> ab", "=42 "])
async def test_what_is_not_understood_costs_a_turn(action: str) -> None:
    said, rewards = await play(CHAIN, [action, ">ab"])
    assert said == ["?ab\n", "?\n", ":cd\n"]
    assert rewards == [None, None]


async def test_a_missing_file_says_so() -> None:
    said, _ = await play(CHAIN, [">qq"])
    assert said[1] == ":?\n"


async def test_running_out_of_turns_is_worth_nothing() -> None:
    game = FAMILY.make(max_turns=2)
    await game.reset(CHAIN, 0)
    assert not (await game.step(">ab")).truncated
    result = await game.step(">cd")
    assert (result.reward, result.terminated, result.truncated, result.success) == (0.0, False, True, False)


async def test_the_last_turn_may_still_answer() -> None:
    _, rewards = await play(CHAIN, [">cd", "=42"], max_turns=2)
    assert rewards == [None, 1.0]


async def test_a_chain_without_an_answer_is_a_broken_task() -> None:
    for files in ({"ab": "ab"}, {"ab": "cd"}):
        with pytest.raises(EnvironmentFailed, match="task is broken"):
            await FAMILY.make().reset(Task.create(FAMILY.id, {"start": "ab", "files": files}), 0)


async def test_the_oracle_solves_every_task() -> None:
    for task in TASKS[:300]:
        _, rewards = await play(task, list(FAMILY.oracle(task)))
        assert rewards[-1] == 1.0


async def test_the_weak_demonstrator_succeeds_two_times_in_five() -> None:
    rng, rewards = Random(1), []
    for task in TASKS[:1000]:
        _, given = await play(task, list(FAMILY.demonstrate(task, rng)))
        rewards.append(given[-1])
    assert 0.34 < mean(rewards) < 0.45


def test_tasks_are_distinct_and_a_function_of_the_seed_alone() -> None:
    assert len({task.id for task in TASKS}) == 2000
    assert FAMILY.generate(7, 50) == TASKS[:50]
    assert not {task.id for task in FAMILY.generate(8, 2000)} & {task.id for task in TASKS}


def test_tasks_do_not_depend_on_the_hash_seed() -> None:
    code = "from environments.pointer_chase import PointerChase as P; print([t.id for t in P().generate(7, 5)])"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert outputs == {str([task.id for task in TASKS[:5]])}


def test_chains_are_geometric_with_a_long_tail() -> None:
    lengths = sorted(len(FAMILY.oracle(task)) - 1 for task in TASKS)
    assert 2.6 < mean(lengths) < 3.1
    assert lengths[len(lengths) // 2] == 2
    assert 6 <= lengths[int(0.95 * len(lengths))] <= 8
    assert 12 <= lengths[-1] <= 16


def test_every_text_is_made_of_the_alphabet() -> None:
    assert FAMILY.alphabet is not None
    assert len(set(FAMILY.alphabet)) == len(FAMILY.alphabet) == 41
    for task in TASKS[:200]:
        files = task.payload["files"]
        assert all(re.fullmatch("[a-z]{2}", name) for name in files)
        assert all(re.fullmatch("[a-z]{2}|[0-9]{2}", content) for content in files.values())
        assert set("".join([*files, *files.values(), *FAMILY.oracle(task)])) <= set(FAMILY.alphabet)
        assert len(files) - (len(FAMILY.oracle(task)) - 1) == 4
