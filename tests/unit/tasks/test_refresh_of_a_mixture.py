"""The refresh of several environments at once: each has its share, and one that fails is left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from driftline.environment import level_of, resolve
from driftline.errors import EnvironmentFailed
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult
from environments.pointer_chase import PointerChase
from tasks.refresh_plan import RefreshParameters, RefreshPlan, pinned_plan
from tasks.refresh_stages import Candidates, to_measure, windows_of
from tasks.refreshing import carry_out
from tests.support.toy_run import Cell, ToyTrainer, create_run, run_all, toy_parameters

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


@dataclass(frozen=True)
class OtherChase(PointerChase):
    """Another environment with the same levels."""

    id: str = "other_chase/v1"


CHASES = f"pointer_chase/v1 + {__name__}:OtherChase"


async def test_a_level_of_one_environment_says_nothing_of_that_level_of_another():
    """Of pointer chase all is solved half the time, of the other nothing; most tasks are judged by their level."""
    store, family = MemoryStore(), resolve(CHASES)
    params = toy_parameters(environment={"id": CHASES, "task_set": NAME})
    run_store = create_run(store, params, family=family)
    await run_all(ToyTrainer(run_store, params, steps=1), Cell(run_store, params, family=family))

    async def play(request: ProbeRequest) -> None:
        book = ProbeBook(store, request.run)
        tasks = {task.id: task for task in tasksets.load(store, request.task_set, request.version)}
        for number, task_id in enumerate(request.task_ids):
            solved = 8 if tasks[task_id].environment == "pointer_chase/v1" else 0
            book.finish(ProbeResult(request.id, number, task_id, 16, solved, 0, 40, 1))

    options = {"proposals": 200, "window": 100, "probe_tasks": 40, "probe_members": 16, "never_solved_share": 1.0}
    plan = plan_of(store, CHASES, recent_steps=1, **options)
    plan = replace(plan, rates={}, size=240)
    found = await carry_out(store, family, plan, play)
    made = tasksets.load_set(store, NAME, found.version)
    levels = {task.id: made.notes[task.id].level for task in made.tasks}
    measured = {(one.environment, levels[one.id]) for one in made.tasks if made.notes[one.id].attempts >= 16}
    pools = {"pointer_chase/v1": "useful", "other_chase/v1": "too_hard"}
    expected = [
        (task.environment, made.notes[task.id].pool)
        for task in made.tasks
        if (task.environment, levels[task.id]) in measured and not made.notes[task.id].attempts
    ]
    assert Counter(environment for environment, pool in expected if pool != "unmeasured").keys() == pools.keys()
    assert all(pool in (pools[environment], "unmeasured") for environment, pool in expected)


def test_each_environment_of_a_mixture_has_its_turn_at_being_measured():
    mixed = resolve(WELL)
    tasks = tuple(mixed.generate(1, 160))
    levels = {task.id: level for task in tasks if (level := level_of(mixed, task)) is not None}
    plan = plan_of(MemoryStore(), WELL, probe_tasks=32)
    found = to_measure(plan, Candidates(tasks, levels, ()))
    assert Counter(task.environment for task in found) == {"pointer_chase/v1": 16, "arithmetic/v1": 16}
    first = [levels[task.id] for task in found if task.id in levels][:4]
    assert first == sorted({*levels.values()})[:4], "of each level one before any has two"


async def test_where_every_part_fails_nothing_is_published():
    store, name = MemoryStore(), f"{BROKEN} + tests.support.environments:BrokenToo"
    with pytest.raises(EnvironmentFailed, match=r"broken/v1 is quarantined: most_failures"):
        await carry_out(store, resolve(name), plan_of(store, name), never)
    assert list(store.list(f"tasksets/{NAME}/HEAD")) == []
