"""Claims of cells over a scripted engine: taken over, renewed, lost; nothing is played in vain or counted twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driftline.environment import StepResult
from driftline.errors import EngineDied
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tests.support.rollout import Behaviour, OddFamily
from tests.support.toy_run import RUN, Cell, ToyTrainer, check_once_each, create_run, run_all, toy_parameters


async def test_a_cell_that_follows_one_that_died_takes_over_its_claims() -> None:
    """The dying cell releases them: the next one does not wait for the leases to run out."""
    params = toy_parameters(rollout={"lease_s": 600.0})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=12)
    training = asyncio.create_task(trainer.run())
    first = Cell(run_store, params, options={"step_s": 0.002})
    dying = asyncio.create_task(first.run())
    while len(trainer.batches) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert first.engine is not None
    while not first.engine.status().running:  # noqa: ASYNC110 (it must leave something unfinished)
        await asyncio.sleep(0.001)
    first.engine.die()
    with pytest.raises(EngineDied):
        await dying
    assert len(trainer.batches) < 12
    async with asyncio.timeout(20.0):
        await asyncio.gather(training, Cell(RunStore(run_store.store, RUN), params).run())
    groups = run_store.new_groups()
    check_once_each(groups, 4)
    assert len(trainer.batches) == 12
    attempts = {t.attempt for group in groups for t in group.trajectories}
    assert attempts == {1, 2}
    assert len({(t.group, t.member, t.attempt) for group in groups for t in group.trajectories}) == len(groups) * 4


async def test_a_claim_that_was_never_released_is_taken_over_when_its_lease_is_over() -> None:
    params = toy_parameters(rollout={"lease_s": 1.2}, overlap={"lead_groups": 0})
    store = MemoryStore()
    run_store = create_run(store, params)
    task_set = run_store.describe().task_set
    task = tasksets.load(store, "pointer-chase", task_set)[0]
    assert RunStore(store, RUN).claim(1, "killed", task.id, task_set, 1.2) is not None
    trainer = ToyTrainer(run_store, params, steps=2)
    await run_all(trainer, Cell(run_store, params))
    taken = {group.number: group for group in run_store.new_groups()}[1]
    assert {t.attempt for t in taken.trajectories} == {2}
    assert taken.task_id == task.id


async def test_leases_of_long_groups_are_renewed() -> None:
    async def slow(action: str) -> StepResult:
        await asyncio.sleep(2.5)
        return StepResult(reward=1.0, terminated=True, success=True)

    params = toy_parameters(rollout={"lease_s": 1.2, "cells": 2}, overlap={"lead_groups": 0})
    family = OddFamily(Behaviour(step=slow))
    run_store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(run_store, params, steps=1)
    cells = [Cell(RunStore(run_store.store, RUN), params, name=name, family=family) for name in ("c0", "c1")]
    counters = await run_all(trainer, *cells)
    assert sum(each.lost_groups for each in counters) == 0
    groups = run_store.new_groups()
    assert {t.attempt for group in groups for t in group.trajectories} == {1}
    check_once_each(groups, 4)


async def test_a_lost_lease_drops_the_group_and_nothing_counts_twice() -> None:
    release = asyncio.Event()

    async def waits(action: str) -> StepResult:
        await release.wait()
        return StepResult(reward=1.0, terminated=True, success=True)

    params = toy_parameters(rollout={"lease_s": 1.2}, overlap={"lead_groups": 0})
    store = MemoryStore()
    family = OddFamily(Behaviour(step=waits))
    run_store = create_run(store, params, family=family)
    trainer = ToyTrainer(run_store, params, steps=1)
    cell = Cell(run_store, params, family=family)
    working = asyncio.gather(trainer.run(), cell.run())
    key = next(info.key for info in await _until_listed(store, f"runs/{RUN}/claims/"))
    found = store.get(key)
    store.put(key, found.body.replace(b'"c0"', b'"cx"'))
    while not cell.engine or cell.engine.status().running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.6)
    release.set()
    async with asyncio.timeout(20.0):
        _, counters = await working
    assert counters.lost_groups == 1
    check_once_each(run_store.new_groups(), 4)
    assert family.opened == family.closed


async def _until_listed(store: MemoryStore, prefix: str) -> list[Any]:
    while not (found := list(store.list(prefix))):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return found
