"""Groups draw their tasks by pool, and a new version is used beside the old one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from driftline.environment import Task, level_of
from driftline.errors import ConfigurationError
from driftline.records import Claim, TaskSampling
from driftline.refresh import strata
from driftline.rollout.background import StoreThreads
from driftline.rollout.groups import TaskSource
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.tasksets import TaskNote, TaskSet
from environments.pointer_chase import PointerChase
from tests.support.rollout import FAMILY

NAME = "pc"


async def test_groups_of_a_pooled_version_are_drawn_by_weight_and_those_of_the_one_before_as_ever():
    store, threads = MemoryStore(), StoreThreads()
    tasks = FAMILY.generate(1, 40)
    plain = tasksets.publish(store, NAME, tasks, held_out=FAMILY.generate(9, 4))
    notes = {task.id: TaskNote("useful" if n < 30 else "too_hard") for n, task in enumerate(tasks)}
    pooled = tasksets.publish(
        store, NAME, tasks, notes=notes, weights={"useful": 0.75, "too_hard": 0.25}, parent=plain
    )
    source, again = (TaskSource(store, NAME, 5, threads, partial(level_of, FAMILY)) for _ in range(2))
    drawn = [await source.of_group(group, ((0, plain), (64, pooled))) for group in range(64, 128)]
    assert Counter(notes[task.id].pool for task in drawn) == {"useful": 48, "too_hard": 16}
    assert drawn == [await again.of_group(group, ((0, plain), (64, pooled))) for group in range(64, 128)]
    assert {(await source.of_group(group, ((0, plain),))).id for group in range(40)} == {task.id for task in tasks}
    claim = Claim(70, "c0", 1, drawn[6].id, pooled, 0.0)
    assert await source.of_claim(claim) == drawn[6]
    with pytest.raises(ConfigurationError, match="is not in task set pc"):
        await source.of_claim(Claim(70, "c0", 1, "x", pooled, 0.0))
    await source.close()
    threads.close()


async def test_with_a_sampling_they_are_drawn_by_strata():
    store, threads = MemoryStore(), StoreThreads()
    family = PointerChase()
    tasks = [task for level in range(4) for task in family.generate_level(level, 1, 16)]
    version = tasksets.publish(store, NAME, tasks, held_out=family.generate(9, 4))
    source = TaskSource(store, NAME, 5, threads, partial(level_of, family))
    sampling = TaskSampling(0, {"pointer_chase/v1/level 0": 0.6, "pointer_chase/v1/level 1": 0.2}, 0.1)
    drawn = [await source.of_group(group, ((0, version),), sampling) for group in range(200)]
    counts = Counter(family.level_of(task) for task in drawn)
    assert all(abs(counts[level] - 200 * share) <= 3 for level, share in enumerate((0.6, 0.2, 0.1, 0.1)))
    assert {await source.stratum(task, version) for task in drawn} == {
        f"pointer_chase/v1/level {level}" for level in range(4)
    }
    passes = [[task.id for task in drawn[at : at + 16]] for at in range(0, 200, 16)]
    assert all(len({*played}) == len(played) for played in passes), "a task came again within a pass"
    await source.close()
    threads.close()


async def test_a_later_version_is_drawn_from_by_what_the_first_one_had_of_each_stratum():
    store, threads = MemoryStore(), StoreThreads()
    family = PointerChase()
    first = [task for level, count in ((0, 48), (1, 16)) for task in family.generate_level(level, 1, count)]
    later = [task for level, count in ((0, 16), (1, 48), (2, 48)) for task in family.generate_level(level, 2, count)]
    versions = [tasksets.publish(store, NAME, tasks, held_out=family.generate(9, 4)) for tasks in (first, later)]
    source = TaskSource(store, NAME, 5, threads, partial(level_of, family))
    pairs, alike = ((0, versions[0]), (10, versions[1])), TaskSampling(0, {}, 0.3)
    drawn = [await source.of_group(group, pairs, alike) for group in range(10, 410)]
    counts = Counter(family.level_of(task) for task in drawn)
    assert counts[0] == pytest.approx(300, abs=6)
    assert counts[1] == pytest.approx(100, abs=6)
    assert counts[2] == pytest.approx(400 * 0.5 / 64, abs=3), "of a level that was not there, few"
    await source.close()
    threads.close()


def test_shares_are_those_of_the_first_version_and_pools_have_their_environments():
    origin = {"a/v1/level 0": range(6), "a/v1/level 3": range(2), "b/v1": range(8)}
    wanted = ["a/v1/level 0", "a/v1/level 1", "b/v1", "b/v1/useful", "c/v1"]
    assert strata.shares(wanted, origin) == {
        "a/v1/level 0": 6 / 16, "a/v1/level 1": 0.5 / 16, "b/v1": 0.5, "b/v1/useful": 0.5, "c/v1": 0.5 / 16,
    }  # fmt: skip


def test_a_stratum_is_the_noted_level_or_the_level_the_family_knows_or_the_pool_or_the_environment():
    task, other = (Task(name, "digits/v1", {}) for name in "ab")
    notes = {"a": TaskNote("useful", level=7), "b": TaskNote("too_hard")}
    curated, plain = TaskSet((task, other), notes, {"useful": 1.0}), TaskSet((task, other))
    assert strata.members(curated, lambda _: None) == {"digits/v1/level 7": (0,), "digits/v1/too_hard": (1,)}
    assert strata.members(curated, lambda _: 3) == {"digits/v1/level 3": (1,), "digits/v1/level 7": (0,)}
    assert strata.members(plain, lambda _: None) == {"digits/v1": (0, 1)}
