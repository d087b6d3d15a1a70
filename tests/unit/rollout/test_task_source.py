"""Groups draw their tasks by pool, and a new version is used beside the old one."""

from __future__ import annotations

from collections import Counter

import pytest

from driftline.errors import ConfigurationError
from driftline.records import Claim
from driftline.rollout.background import StoreThreads
from driftline.rollout.groups import TaskSource
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.tasksets import TaskNote
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
    source, again = (TaskSource(store, NAME, 5, threads) for _ in range(2))
    drawn = [await source.of_group(group, pooled) for group in range(64, 128)]
    assert Counter(notes[task.id].pool for task in drawn) == {"useful": 48, "too_hard": 16}
    assert drawn == [await again.of_group(group, pooled) for group in range(64, 128)]
    assert {(await source.of_group(group, plain)).id for group in range(40)} == {task.id for task in tasks}
    claim = Claim(70, "c0", 1, drawn[6].id, pooled, 0.0)
    assert await source.of_claim(claim) == drawn[6]
    with pytest.raises(ConfigurationError, match="is not in task set pc"):
        await source.of_claim(Claim(70, "c0", 1, "x", pooled, 0.0))
    await source.close()
    threads.close()
