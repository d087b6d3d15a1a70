"""A refresh of a family whose generator repeats itself: within a window, or whatever the seed."""

from __future__ import annotations

import pytest

from driftline.environment import Task
from driftline.errors import ConfigurationError, ObjectMissing
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeRequest
from environments.pointer_chase import PointerChase
from tasks import refreshing
from tasks.refresh_plan import RefreshParameters, RefreshPlan, pinned_plan

NAME = "pointer-chase"


class Twins(PointerChase):
    """Every task twice."""

    def generate(self, seed: int, count: int) -> list[Task]:
        return [task for task in super().generate(seed, count) for _ in range(2)][:count]


class Constant(PointerChase):
    """The same tasks, whatever the seed."""

    def generate(self, seed: int, count: int) -> list[Task]:
        return super().generate(0, count)


async def never(request: ProbeRequest) -> None:
    raise AssertionError("there is no run to play with")


def plan_of(store: MemoryStore, family: PointerChase) -> RefreshPlan:
    options = RefreshParameters.model_validate({"proposals": 8, "window": 4, "probe_tasks": 0})
    return pinned_plan(store, family, NAME, seed=3, size=8, held_out_tasks=8, options=options)


async def test_of_a_task_that_comes_twice_in_a_window_one_is_kept():
    store, family = MemoryStore(), Twins()
    found = await refreshing.carry_out(store, family, plan_of(store, family), never)
    assert len(tasksets.load(store, NAME, found.version)) == 4
    assert len(tasksets.load(store, f"{NAME}-held-out", found.held_out_version)) == 4


async def test_proposals_that_are_all_copies_are_told_as_such():
    store, family = MemoryStore(), Constant()
    with pytest.raises(ConfigurationError, match=r"none of 8 proposals is left, 8 of them copies .*other seeds"):
        await refreshing.carry_out(store, family, plan_of(store, family), never)
    with pytest.raises(ObjectMissing):
        tasksets.head(store, NAME)
