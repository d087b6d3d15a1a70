"""Solve rates of candidates are asked of the run's cells, and of a bounded rollout where no run is under way."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from driftline.errors import DeadlineExceeded
from driftline.refresh.solving import SolveRate
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult
from tasks import measuring
from tasks.refresh_plan import RefreshParameters, RefreshPlan
from tasks.refresh_stages import Candidates
from tests.support.rollout import FAMILY
from tests.support.toy_run import RUN, create_run, toy_parameters

CANDIDATES = Candidates(tuple(FAMILY.generate(5, 4)), {}, ())


async def never(request: ProbeRequest) -> None:
    raise AssertionError("a run is under way")


def plan_of(identity: str) -> RefreshPlan:
    options = RefreshParameters.model_validate({"probe_members": 2, "measure_deadline_s": 10.0})
    return RefreshPlan(
        identity, FAMILY.id, "pointer-chase", 1, 8, 2, options.model_dump(mode="json"), None, None, run=RUN
    )


async def test_a_refresh_whose_request_was_displaced_goes_on_when_the_other_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(measuring, "POLL_S", 0.01)
    run_store = create_run(MemoryStore(), toy_parameters())
    store, cell = run_store.store, ProbeBook(run_store.store, RUN)
    known = {"of-the-run": SolveRate(8, 3), CANDIDATES.tasks[0].id: SolveRate(4, 4)}
    plan = replace(plan_of("first"), rates=known)
    measured = asyncio.create_task(measuring.measure(store, plan, CANDIDATES, never))
    while cell.open_request() is None:  # noqa: ASYNC110 (the store has no event)
        await asyncio.sleep(0.005)
    version = tasksets.publish(store, "others", FAMILY.generate(6, 2))
    other = ProbeRequest("second", RUN, "others", version, (), 2)
    cell.post(other)
    cell.close(other)
    async with asyncio.timeout(5.0):
        while (opened := cell.open_request()) is None:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
    assert (opened.id, opened.members, len(opened.task_ids)) == ("first", 2, 4)
    for number, task_id in enumerate(opened.task_ids):
        cell.finish(ProbeResult(opened.id, number, task_id, 2, 1, 0, 9, 1, "c0"))
    found = await measured
    probed = {task_id: SolveRate(2, 1) for task_id in opened.task_ids}
    assert found.rates == probed | {"of-the-run": SolveRate(8, 3), CANDIDATES.tasks[0].id: SolveRate(6, 5)}
    assert found.tokens == 4 * 9
    assert cell.open_request() is None


async def test_without_candidates_the_runs_own_groups_say_it_all():
    plan = replace(plan_of("first"), rates={"of-the-run": SolveRate(8, 3)})
    found = await measuring.measure(MemoryStore(), plan, Candidates((), {}, ()), never)
    assert (found.rates, found.tokens) == (plan.rates, 0)


async def test_what_was_measured_is_not_played_again():
    run_store, played = create_run(MemoryStore(), toy_parameters()), list[str]()
    run_store.end("finished")

    async def play(request: ProbeRequest) -> None:
        played.append(request.id)
        ProbeBook(run_store.store, RUN).finish(ProbeResult(request.id, 0, request.task_ids[0], 2, 2, 0, 9, 1, "c0"))

    first = await measuring.measure(run_store.store, plan_of("first"), CANDIDATES, play)
    assert await measuring.measure(run_store.store, plan_of("first"), CANDIDATES, play) == first
    assert played == ["first"]


async def test_a_run_whose_cells_play_no_probe_groups_is_not_waited_for():
    run_store = create_run(MemoryStore(), toy_parameters(rollout={"probe_episodes": 0}))
    async with asyncio.timeout(5.0):
        found = await measuring.measure(run_store.store, plan_of("first"), CANDIDATES, never)
    assert (found.rates, found.tokens) == ({}, 0)
    assert "0 of 4 probe groups" in found.by


@pytest.mark.parametrize("late", ["its own deadline", "what plays"])
async def test_what_is_not_measured_in_time_is_unmeasured_and_a_play_that_fails_fails(late: str):
    run_store = create_run(MemoryStore(), toy_parameters())
    run_store.end("finished")
    plan = plan_of("first")

    async def play(request: ProbeRequest) -> None:
        ProbeBook(run_store.store, RUN).finish(ProbeResult(request.id, 0, request.task_ids[0], 2, 2, 0, 9, 1, "c0"))
        if late == "what plays":
            raise DeadlineExceeded("the engine does not start")
        await asyncio.sleep(60)

    if late == "what plays":
        with pytest.raises(DeadlineExceeded, match="does not start"):
            await measuring.measure(run_store.store, plan, CANDIDATES, play)
        return
    hurried = replace(plan, parameters={**plan.parameters, "measure_deadline_s": 0.1})
    found = await measuring.measure(run_store.store, hurried, CANDIDATES, play)
    assert found.rates == {CANDIDATES.tasks[0].id: SolveRate(2, 2)}
    assert "1 of 4 probe groups" in found.by
