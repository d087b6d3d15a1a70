"""A cell that comes to an early end: its engine fails, it is cancelled, or its policy cannot be proven."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from driftline.engine.protocol import UpdateReport
from driftline.engine.scripted import ScriptedEngine
from driftline.environment import Message, StepResult
from driftline.errors import DeadlineExceeded, EngineDied, EngineError, ProbeNotReproduced, WeightUpdateFailed
from driftline.records import PolicyVersion, WeightsManifest
from driftline.store.memory import MemoryStore
from tests.support.rollout import Behaviour, OddFamily, forever, manifest
from tests.support.toy_run import RUN, Cell, ToyTrainer, check_once_each, create_run, toy_parameters

FAULTS = {"die": EngineDied, "hang": EngineDied, "cut_turns": EngineError, "refuse_updates": WeightUpdateFailed}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_engine_that_fails_ends_the_cell_with_what_is_finished_written(fault: str) -> None:
    """SkyRL#1691, #1173: never a hang, never a lost group."""
    params = toy_parameters(engine={"request_deadline_s": 0.3})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=1000)
    cell = Cell(run_store, params, options={"step_s": 0.001})
    training = asyncio.create_task(trainer.run())
    collecting = asyncio.create_task(cell.run())
    while len(trainer.batches) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert cell.engine is not None
    getattr(cell.engine, fault)()
    async with asyncio.timeout(10.0):
        with pytest.raises(FAULTS[fault]) as raised:
            await collecting
    assert type(raised.value) is FAULTS[fault]
    training.cancel()
    await asyncio.wait([training])
    groups = run_store.new_groups()
    check_once_each(groups, 4)
    assert len(groups) >= 9
    assert all(t.status == "ok" for group in groups for t in group.trajectories)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.05, 0.2, 0.4])
async def test_cancelling_a_cell_at_any_time_leaves_nothing_behind(wait_s: float) -> None:
    async def slow(action: str) -> StepResult:
        await asyncio.sleep(0.003)
        return StepResult((Message("tool", ":ab\n"),))

    params = toy_parameters()
    family = OddFamily(Behaviour(step=slow))
    run_store = create_run(MemoryStore(), params, family=family)
    training = asyncio.create_task(ToyTrainer(run_store, params, steps=100).run())
    collecting = asyncio.create_task(Cell(run_store, params, family=family).run())
    await asyncio.sleep(wait_s)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10.0):
            await collecting
    training.cancel()
    await asyncio.wait([training])
    assert family.opened == family.closed
    assert len(asyncio.all_tasks()) == 1


async def test_a_run_that_is_cancelled_ends_its_cells_whatever_their_environments_do() -> None:
    params = toy_parameters(environment={"step_deadline_s": 60.0})
    family = OddFamily(Behaviour(step=forever))
    run_store = create_run(MemoryStore(), params, family=family)
    lease = run_store.take_epoch()
    run_store.write_manifest(manifest(0, RUN, lease.epoch))
    lease.commit(replace(lease.head, version=PolicyVersion(0, lease.epoch)))
    collecting = asyncio.create_task(Cell(run_store, params, family=family).run())
    while family.opened < 16:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    run_store.end("cancelled", "by a test")
    async with asyncio.timeout(5.0):
        counters = await collecting
    assert counters.groups == 0
    assert family.opened == family.closed == 16


async def test_a_run_without_a_policy_is_given_up_on() -> None:
    params = toy_parameters(limits={"batch_deadline_s": 0.4})
    run_store = create_run(MemoryStore(), params)
    with pytest.raises(DeadlineExceeded, match=r"limits\.batch_deadline_s"):
        await Cell(run_store, params).run()


class Unproven(ScriptedEngine):
    """Does not reproduce the probe from some version on."""

    def __init__(self, first: int, **options: Any) -> None:
        super().__init__(**options)
        self._first = first

    async def update(self, manifest: WeightsManifest) -> UpdateReport:
        report = await super().update(manifest)
        if manifest.version.number >= self._first:
            refusal = ProbeNotReproduced("the probe differs")
            refusal.difference_nats = 0.25
            raise refusal
        return replace(report, probe_error=2e-6)


@pytest.mark.parametrize("first", [0, 2])
async def test_a_cell_whose_engine_does_not_reproduce_a_probe_says_so_with_its_last_word(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any version, and at the one it begins with, or a cell that fails at each start would never be heard of."""
    params = toy_parameters()
    run_store = create_run(MemoryStore(), params)
    training = asyncio.create_task(ToyTrainer(run_store, params, steps=1000).run())
    monkeypatch.setattr("tests.support.toy_run.ScriptedEngine", partial(Unproven, first))
    async with asyncio.timeout(10.0):
        with pytest.raises(ProbeNotReproduced):
            await Cell(run_store, params).run()
    training.cancel()
    await asyncio.wait([training])
    (offset,) = run_store.offsets()
    assert offset.refused_version is not None
    assert offset.refused_version >= first
    assert offset.probe_difference_nats == 0.25
    assert offset.version < offset.refused_version or first == 0
