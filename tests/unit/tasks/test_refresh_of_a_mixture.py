"""The refresh of several environments at once: each has its share, and one that fails is left out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from driftline.environment import resolve
from driftline.errors import EnvironmentFailed
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeRequest
from tasks.refresh_plan import RefreshParameters, RefreshPlan, pinned_plan
from tasks.refresh_stages import windows_of
from tasks.refreshing import carry_out

NAME = "mixed"
WELL = "pointer_chase/v1 * 3 + arithmetic/v1"
BROKEN = "tests.support.environments:Broken"


async def never(request: ProbeRequest) -> None:
    raise AssertionError("there is no run to play with")


def plan_of(store: MemoryStore, environment: str, **given: Any) -> RefreshPlan:
    options = RefreshParameters.model_validate({"proposals": 48, "window": 20} | given)
    return pinned_plan(
        store, resolve(environment), NAME, seed=3, size=60, held_out_tasks=8, options=options, environment=environment
    )


async def test_each_part_is_proposed_by_its_share_in_windows_of_its_own():
    store = MemoryStore()
    plan = plan_of(store, WELL)
    assert [(window.environment, window.count) for window in windows_of(plan)] == [
        ("pointer_chase/v1", 20), ("pointer_chase/v1", 16), ("arithmetic/v1", 12),
    ]  # fmt: skip
    found = await carry_out(store, resolve(WELL), plan, never)
    manifest = tasksets.manifest(store, NAME, found.version)
    assert manifest.environments == {"pointer_chase/v1": 36, "arithmetic/v1": 12}
    held_out = tasksets.load(store, tasksets.held_out_name(NAME), found.held_out_version)
    assert Counter(task.environment for task in held_out) == {"pointer_chase/v1": 6, "arithmetic/v1": 2}
    assert (await carry_out(store, resolve(WELL), plan, never)) == found


async def test_a_part_that_fails_is_left_out_of_what_was_and_of_what_comes(caplog: pytest.LogCaptureFixture):
    store, name = MemoryStore(), f"pointer_chase/v1 * 3 + {BROKEN}"
    before = resolve(name).generate(1, 40)
    held_out = resolve("pointer_chase/v1").generate(99, 8)
    parent = tasksets.publish(store, NAME, before, held_out=held_out)
    found = await carry_out(store, resolve(name), plan_of(store, name), never)
    made = tasksets.load(store, NAME, found.version)
    assert {task.environment for task in made} == {"pointer_chase/v1"}
    assert len(made) == 60
    assert tasksets.manifest(store, NAME, found.version).parent == parent
    assert found.statistics["curate/went"] >= sum(task.environment == "broken/v1" for task in before) == 10
    assert "its environment is quarantined" in found.report
    assert "broken/v1 is quarantined: most_failures is 0.1, found 1.000" in caplog.text


async def test_where_every_part_fails_nothing_is_published():
    store, name = MemoryStore(), f"{BROKEN} + tests.support.environments:BrokenToo"
    with pytest.raises(EnvironmentFailed, match=r"broken/v1 is quarantined: most_failures"):
        await carry_out(store, resolve(name), plan_of(store, name), never)
    assert list(store.list(f"tasksets/{NAME}/HEAD")) == []
