from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from driftline.environment import PrescribingEnvironment, Task, resolve
from driftline.errors import ConfigurationError, EnvironmentFailed
from driftline.traces import EpisodeShape, load, write
from environments.trace_replay import PUBLISHED_TAIL, TraceReplay, published_tail
from environments.trace_replay.family import tasks_of
from environments.trace_replay.replay import Replay

FAMILY = TraceReplay()
SHAPE = EpisodeShape(
    group=5, member=0, prompt_tokens=6, sampled_tokens=(3, 1, 2), observation_tokens=(4, 0, 0),
    tool_seconds=(0.25, 0.0, 0.5), reset_seconds=0.125, reward_seconds=1.5, reward=0.5, environment="e", source="s",
)  # fmt: skip


def task_of(*shapes: EpisodeShape) -> Task:
    (task,) = tasks_of(shapes)
    return task


async def test_an_episode_takes_what_was_recorded_and_no_more() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    replay = Replay(max_turns=3, sleep=sleep)
    start = await replay.prescribe(task_of(SHAPE), seed=1, member=0)
    assert start.turn_tokens == (3, 1, 2)
    assert len(start.messages[0].content) == 6
    first, second, third = [await replay.step("whatever") for _ in range(3)]
    assert len(first.messages[0].content) == 4
    assert second.messages == ()
    assert (third.reward, third.success, third.terminated, third.messages) == (0.5, True, True, ())
    assert (first.reward, first.terminated) == (None, False)
    assert slept == [0.125, 0.25, 0.5, 1.5]
    with pytest.raises(EnvironmentFailed, match="has ended"):
        await replay.step("more")
    await replay.close()
    await replay.close()


async def test_a_restored_episode_goes_on_without_the_seconds_before() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    first, second, task = Replay(3, sleep), Replay(3, sleep), task_of(SHAPE, replace(SHAPE, member=1))
    await first.prescribe(task, seed=1, member=1)
    await first.step("a")
    taken = await first.snapshot()
    rest = [await first.step("b"), await first.step("c")]
    slept.clear()
    await second.restore(task, taken)
    assert slept == []
    assert [await second.step("d"), await second.step("e")] == rest
    assert slept == [0.5, 1.5]
    await first.restore(task, await second.snapshot())
    with pytest.raises(EnvironmentFailed, match="has ended"):
        await first.step("more")
    with pytest.raises(EnvironmentFailed, match="no snapshot of trace_replay/v1"):
        await first.restore(task, {"turns": 1})


async def test_members_share_a_prompt_and_nothing_else() -> None:
    task = tasks_of(published_tail.generate(groups=1))[0]

    async def first_words(member: int) -> tuple[Any, ...]:
        async def no_sleep(seconds: float) -> None:
            pass

        replay = Replay(20, no_sleep)
        start = await replay.prescribe(task, 0, member)
        return start.messages, start.turn_tokens, (await replay.step("")).messages

    one, other, again = [await first_words(member) for member in (0, 1, 0)]
    assert one == again
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]


async def test_what_cannot_be_replayed_whole_is_refused() -> None:
    with pytest.raises(EnvironmentFailed, match=r"raise environment\.max_turns"):
        await Replay(2).prescribe(task_of(SHAPE), 0, 0)
    with pytest.raises(EnvironmentFailed, match=r"lower rollout\.group_size to 1"):
        await Replay(3).prescribe(task_of(SHAPE), 0, 1)


def test_the_family() -> None:
    assert isinstance(FAMILY.make(), PrescribingEnvironment)
    assert resolve("trace_replay/v1") == FAMILY
    assert resolve("environments.trace_replay:PUBLISHED_TAIL") is PUBLISHED_TAIL
    assert FAMILY.generate(7, 3) == FAMILY.generate(7, 5)[:3]
    assert FAMILY.generate(7, 3) != FAMILY.generate(8, 3)
    assert FAMILY.generate(published_tail.SEED, 64) == PUBLISHED_TAIL.generate(1, 64)
    task = FAMILY.generate(7, 1)[0]
    demonstrated = [len(action) + 1 for action in FAMILY.demonstrate(task, Random(0))]
    assert demonstrated == task.payload["members"][0]["sampled_tokens"]


def test_a_task_is_known_by_its_shape(tmp_path: Path) -> None:
    trace = published_tail.generate(groups=2)
    ids = [task.id for task in tasks_of(trace)]
    assert ids == [task.id for task in tasks_of(trace[::-1])]
    assert ids[0] != ids[1]
    changed = tasks_of(published_tail.generate(groups=2, sigma=0.5))
    assert changed[0].id != ids[0]
    path = tmp_path / "t.jsonl"
    write(path, trace)
    assert load(path) == trace
    assert [task.id for task in TraceReplay(path).generate(0, 2)] == ids
    with pytest.raises(ConfigurationError, match=r"2 groups, not 3: lower environment\.train_tasks"):
        TraceReplay(path).generate(0, 3)
