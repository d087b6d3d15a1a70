"""Probe groups: played by cells beside their own, counted in a class of their own, never trained."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from driftline.engine.scripted import ScriptedEngine
from driftline.rollout import prober
from driftline.rollout.bootstrap import Surroundings
from driftline.rollout.measure import measure
from driftline.store import keys, tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult, probe_claim, tokens_of
from driftline.store.run_store import RunStore
from tests.support.clock import Clock
from tests.support.rollout import FAMILY, RENDERER, encode, solve
from tests.support.toy_run import RUN, Cell, ToyTrainer, create_run, run_all, toy_parameters

CANDIDATES = "pointer-chase-candidates"


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
    trainer = ToyTrainer(store, params, steps=12, train_s=0.05)
    cells = [Cell(store, params, name, script=lazy, options={"step_s": 0.002}) for name in ("c0", "c1")]
    await run_all(trainer, *cells)
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
