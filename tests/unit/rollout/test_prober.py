"""Probe groups: played by cells beside their own, counted in a class of their own, never trained."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from driftline.engine.protocol import GenerationRequest
from driftline.engine.scripted import ScriptedEngine
from driftline.errors import ConfigurationError, EngineDied
from driftline.records import Claim, Segment
from driftline.rollout import prober, scheduler
from driftline.rollout.background import StoreThreads
from driftline.rollout.bootstrap import Surroundings
from driftline.rollout.episode import Episode
from driftline.rollout.measure import measure
from driftline.rollout.place import CellPlace
from driftline.store import keys, tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult, probe_claim, tokens_of
from driftline.store.run_store import RunStore
from tests.support.clock import Clock
from tests.support.records import trajectory
from tests.support.rollout import FAMILY, RENDERER, encode, resources, solve, started
from tests.support.toy_run import RUN, Cell, ToyTrainer, create_run, run_all, toy_parameters

CANDIDATES = "pointer-chase-candidates"
ONLY = CellPlace("c0", 0, 1)


def post(store: RunStore, count: int = 12, members: int = 3, identity: str = "r1") -> ProbeRequest:
    tasks = FAMILY.generate(77, count)
    version = tasksets.publish(store.store, CANDIDATES, tasks)
    request = ProbeRequest(identity, RUN, CANDIDATES, version, tuple(task.id for task in tasks), members)
    ProbeBook(store.store, RUN).post(request)
    return request


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "POLL_S", 0.02)


def lazy(request: Any) -> list[int]:
    """Solves the tasks of the run, and answers wrongly at once where a probe asks."""
    is_probe = int(request.id.split("/")[1].split(".")[0]) >= prober.FIRST_NUMBER
    return encode("=zz\n") if is_probe else solve(request)


async def test_cells_play_a_request_beside_their_groups_and_nothing_of_it_is_trained():
    params = toy_parameters(rollout={"cells": 2, "probe_episodes": 6})
    store = create_run(MemoryStore(), params)
    request = post(store)
    book = ProbeBook(store.store, RUN)
    trainer = ToyTrainer(store, params, steps=12, train_s=0.05, finish=False)
    cells = [Cell(store, params, name, script=lazy, options={"step_s": 0.002}) for name in ("c0", "c1")]

    async def end() -> None:
        while len(book.finished(request)) < 12 or len(trainer.batches) < 12:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
        store.end("finished")

    ending = asyncio.create_task(end())
    async with asyncio.timeout(60.0):
        await asyncio.gather(trainer.run(), *(cell.run() for cell in cells), ending)
    results = book.results(request)
    assert [result.number for result in results] == list(range(12))
    assert [(result.task_id, result.attempts, result.solved, result.invalid) for result in results] == [
        (task_id, 3, 0, 0) for task_id in request.task_ids
    ]
    assert {result.cell for result in results} == {"c0", "c1"}
    played = {group.number for group in store.new_groups()}
    assert max(played) < prober.FIRST_NUMBER
    accounts = [report.account for report in store.offsets()]
    assert all(account is not None and account.imbalance == 0 for account in accounts)
    assert sum(account.probe for account in accounts if account) == tokens_of(results) > 0


async def test_a_request_that_is_closed_is_left_alone():
    params = toy_parameters()
    store = create_run(MemoryStore(), params)
    request = post(store)
    book = ProbeBook(store.store, RUN)
    assert book.open_request() == request
    book.close(request)
    assert book.open_request() is None
    await run_all(ToyTrainer(store, params, steps=3), Cell(store, params))
    assert book.results(request) == []


async def test_a_request_that_is_closed_amid_its_groups_has_no_further_one_begun():
    params = toy_parameters(rollout={"probe_episodes": 6})
    store = create_run(MemoryStore(), params)
    request = post(store, count=400)
    book, at_close = ProbeBook(store.store, RUN), list[int]()

    async def close() -> None:
        while not book.finished(request):  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
        book.close(request)
        at_close.append(len(book.finished(request)))

    closing = asyncio.create_task(close())
    await run_all(ToyTrainer(store, params, steps=12, train_s=0.05), Cell(store, params, script=lazy))
    await closing
    under_way = 6 // request.members
    assert len(book.finished(request)) <= at_close[0] + under_way


@pytest.mark.parametrize("damage", ["tasks", "manifest", "other tasks"])
async def test_a_request_whose_tasks_cannot_be_read_is_passed_over_and_the_run_goes_on(damage: str):
    params = toy_parameters(rollout={"probe_episodes": 6})
    store = create_run(MemoryStore(), params)
    request = post(store)
    prefix = keys.task_set_prefix(CANDIDATES, request.version)
    if damage == "tasks":
        store.store.put(f"{prefix}tasks.parquet", b"PAR1")
    elif damage == "manifest":
        store.store.delete([f"{prefix}manifest.json"])
    else:
        request = replace(request, id="r2", task_ids=("no-such-task",))
        ProbeBook(store.store, RUN).post(request)
    trainer = ToyTrainer(store, params, steps=4, train_s=0.05)
    await run_all(trainer, Cell(store, params))
    assert len(trainer.batches) == 4
    assert ProbeBook(store.store, RUN).results(request) == []


def test_a_group_that_has_a_result_is_not_taken_over_when_its_claim_has_expired():
    clock = Clock()
    store = create_run(MemoryStore(clock), toy_parameters())
    request = post(store)
    mine, theirs = (ProbeBook(store.store, RUN) for _ in range(2))
    for number in (0, 1):
        assert mine.claims(request).claim(probe_claim(number, "c0", request.task_ids[number], "v"), 20.0)
    mine.finish(ProbeResult(request.id, 0, request.task_ids[0], 3, 2, 0, 30, 1, "c0"))
    clock.now += 60.0
    assert theirs.claims(request).claim(probe_claim(0, "c1", request.task_ids[0], "v"), 20.0) is None
    taken = theirs.claims(request).claim(probe_claim(1, "c1", request.task_ids[1], "v"), 20.0)
    assert taken is not None
    assert (taken.cell, taken.attempt) == ("c1", 2)


def test_a_request_is_taken_up_again_once_the_one_that_took_its_place_is_closed():
    store = create_run(MemoryStore(), toy_parameters())
    first, second = post(store), post(store, identity="r2")
    book = ProbeBook(store.store, RUN)
    book.reopen(first)
    assert book.open_request() == second
    book.close(first)
    assert book.open_request() == second
    book.close(second)
    book.reopen(first)
    assert book.open_request() == first
    store.store.put(keys.probes_open(RUN), b"{")
    book.reopen(second)
    assert book.open_request() == second


def test_a_request_that_cannot_be_read_is_told_once(caplog: pytest.LogCaptureFixture):
    store = create_run(MemoryStore(), toy_parameters())
    request = post(store)
    store.store.put(keys.probe_request(RUN, request.id), b"{")
    book = ProbeBook(store.store, RUN)
    with caplog.at_level(logging.ERROR):
        assert [book.open_request() for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    other = post(store, identity="r2")
    assert book.open_request() == other


async def test_without_slots_for_them_no_probe_group_is_played():
    params = toy_parameters(rollout={"probe_episodes": 0})
    store = create_run(MemoryStore(), params)
    request = post(store)
    await run_all(ToyTrainer(store, params, steps=3, train_s=0.05), Cell(store, params))
    assert ProbeBook(store.store, RUN).results(request) == []


def test_a_result_counts_once():
    store = create_run(MemoryStore(), toy_parameters())
    request, book = post(store), ProbeBook(store.store, RUN)
    first = ProbeResult(request.id, 0, request.task_ids[0], 3, 2, 0, 30, 1, "c0")
    assert book.finish(first)
    assert not book.finish(ProbeResult(request.id, 0, request.task_ids[0], 3, 0, 0, 10, 1, "c1"))
    assert book.results(request) == [first]


def test_requests_have_numbers_of_their_own():
    one, other = (ProbeRequest(name, RUN, CANDIDATES, "v", (), 2) for name in ("a", "b"))
    numbers = {prober.number_of(request, n) for request in (one, other) for n in range(1000)}
    assert len(numbers) == 2000
    assert min(numbers) >= prober.FIRST_NUMBER


async def test_a_bounded_rollout_plays_what_is_left_of_a_request():
    params = toy_parameters()
    store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(store, params, steps=1)
    await run_all(trainer, Cell(store, params))
    request = post(store, count=5, members=2)
    done = ProbeResult(request.id, 3, request.task_ids[3], 2, 0, 0, 7, 1, "c0")
    ProbeBook(store.store, RUN).finish(done)
    engine = ScriptedEngine(script=solve)
    await engine.start()
    found: Any = Surroundings(store, store.describe(), params, FAMILY, None, RENDERER)  # pyright: ignore
    results = await measure(found, engine, request)
    await engine.close()
    assert [result.solved for result in results] == [2, 2, 2, 0, 2]
    assert {result.policy_version for result in results} == {1}
    assert len(asyncio.all_tasks()) == 1


def prober_of(store: RunStore, engine: ScriptedEngine, place: CellPlace = ONLY, **options: Any) -> prober.Prober:
    given: dict[str, Any] = {"episodes": 6, "lease_s": 20.0} | options
    return prober.Prober(store.store, RUN, place, resources(engine), StoreThreads(), **given)


async def test_probe_groups_are_played_in_a_cells_own_order_few_at_a_time_and_behind_all_others():
    store, begun, most = create_run(MemoryStore(), toy_parameters()), list[int](), list[int]()
    request, under_way, asked = post(store, count=5, members=4), set[Episode](), set[int]()

    def begin(episode: Episode) -> None:
        begun.append(episode.spec.group - prober.number_of(request, 0))
        under_way.add(episode)
        most.append(len(under_way))

    def note(wanted: GenerationRequest) -> list[int]:
        asked.add(wanted.priority)
        return solve(wanted)

    engine = await started(note)
    place = CellPlace("c1", 1, 2)
    left = await prober_of(
        store, engine, place, episodes=3, on_begin=begin, on_end=under_way.remove
    ).serve(request)  # fmt: skip
    await engine.close()
    assert left == 0
    assert begun == [group for group in (1, 3, 0, 2, 4) for _ in range(4)], "its own half first"
    assert max(most) == 3
    assert min(asked) > scheduler.priority_by_prediction(10**6, 1, 0.0)


async def test_a_group_whose_cell_has_died_is_played_by_another_once_its_claim_has_expired():
    clock = Clock()
    store = create_run(MemoryStore(clock), toy_parameters())
    request = post(store, count=2, members=2)
    book = ProbeBook(store.store, RUN)
    assert book.claims(request).claim(probe_claim(0, "dead", request.task_ids[0], request.version), 20.0)
    engine = await started()
    working = asyncio.create_task(prober_of(store, engine).work())
    async with asyncio.timeout(10.0):
        while book.finished(request) != {1}:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
        clock.now += 60.0
        while book.finished(request) != {0, 1}:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
    working.cancel()
    await asyncio.wait([working])
    await engine.close()
    assert [result.cell for result in book.results(request)] == ["c0", "c0"]


@pytest.mark.parametrize("ends", ["is cancelled", "loses its engine"])
async def test_what_a_cell_leaves_unfinished_another_one_takes_up_at_once(ends: str):
    store = create_run(MemoryStore(), toy_parameters())
    request, engine, booked = post(store, count=1, members=2), await started(), list[Episode]()
    engine.hang()
    serving = asyncio.create_task(prober_of(store, engine, on_end=booked.append).serve(request))
    async with asyncio.timeout(10.0):
        while engine.status().waiting < 2:  # noqa: ASYNC110 (an engine has no event)
            await asyncio.sleep(0.005)
    if ends == "is cancelled":
        serving.cancel()
    else:
        engine.die()
    await asyncio.wait([serving])
    assert serving.cancelled() or isinstance(serving.exception(), EngineDied)
    await engine.close()
    assert len(booked) == 2, "their tokens are accounted for"
    theirs = ProbeBook(store.store, RUN).claims(request)
    assert theirs.claim(probe_claim(0, "c1", request.task_ids[0], request.version), 20.0) is not None


def test_a_result_is_of_valid_episodes_alone_and_of_every_token():
    solved, failed = trajectory(7, 0, reward=1.0, success=True), trajectory(7, 1, reward=0.0, success=False)
    broken = trajectory(7, 2, reward=None, success=True, status="env_error")
    late = trajectory(7, 3, reward=1.0, success=True, segments=(Segment(2, 5), Segment(4, 6)))
    claim, request = Claim(7, "c0", 1, "task-7", "v", 0.0), ProbeRequest("r1", RUN, CANDIDATES, "v", (), 4)
    assert prober.result_of(request, claim, [late, solved, failed, broken]) == ProbeResult(
        "r1", 7, "task-7", attempts=3, solved=2, invalid=1, sampled_tokens=12, policy_version=1, cell="c0"
    )
    unsampled = replace(broken, token_ids=(), loss_mask=(), logprobs=(), segments=())
    assert prober.result_of(request, claim, [unsampled]).policy_version == -1


async def test_a_run_without_a_policy_measures_nothing_and_says_so():
    params = toy_parameters()
    store = create_run(MemoryStore(), params)
    found: Any = Surroundings(store, store.describe(), params, FAMILY, None, RENDERER)  # pyright: ignore
    engine = ScriptedEngine(script=solve)
    with pytest.raises(ConfigurationError, match="has no policy yet"):
        await measure(found, engine, post(store))
