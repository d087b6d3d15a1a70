"""Answers from memory: in time, marked when they are old, and no more of them than is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from driftline.errors import CorruptObject, DeadlineExceeded, ObjectMissing, StoreUnavailable
from driftline.offsets import followed
from driftline.offsets.followed import IDLE_S, STALE_S, Followed, RunHub
from driftline.offsets.reader import RunReader
from driftline.store.memory import MemoryStore
from tests.support import offset_runs


class Source:
    """Something to read, which may fail or hang."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def __call__(self) -> int:
        self.open.wait(10)
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.reads


Make = Callable[..., Followed[int]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    threads, made = ThreadPoolExecutor(4), list[Followed[int]]()

    def build(source: Source, **options: Any) -> Followed[int]:
        made.append(Followed(source, threads, "the source", **{"period_s": 0.01, "deadline_s": 1.0, **options}))
        return made[-1]

    yield build
    for one in made:
        await one.close()
    threads.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def test_it_is_read_on_by_itself_once_asked(make: Make):
    source = Source()
    one = make(source)
    assert source.reads == 0
    assert (await one.latest()).value == 1
    await until(lambda: source.reads >= 3)
    assert (await one.latest()).value >= 3


async def test_many_questions_are_one_read(make: Make):
    source = Source()
    one = make(source, period_s=60)
    assert {found.value for found in await asyncio.gather(*(one.latest() for _ in range(50)))} == {1}
    assert source.reads == 1


async def test_an_outage_leaves_the_last_answer_with_its_age_and_reason(make: Make):
    source, now = Source(), [0.0]
    one = make(source, monotonic=lambda: now[0])
    assert not (await one.latest()).stale
    source.error = StoreUnavailable("the store is away")
    before = source.reads
    await until(lambda: source.reads > before + 1)
    now[0] = 7.0
    found = await one.latest()
    assert (found.stale, found.trouble) == (True, "the store is away")
    assert found.age_s >= 6.9
    source.error = None
    await until(lambda: not one._error)
    assert not (await one.latest()).stale


async def test_a_store_that_hangs_makes_answers_stale_and_never_late(make: Make):
    source, now = Source(), [0.0]
    one = make(source, monotonic=lambda: now[0])
    await one.latest()
    source.open.clear()
    now[0] = STALE_S + 0.1
    await asyncio.sleep(0.05)
    async with asyncio.timeout(0.5):
        assert (await one.latest()).stale
    source.open.set()


async def test_a_first_read_that_hangs_ends_at_the_deadline_and_goes_on(make: Make):
    source = Source()
    source.open.clear()
    one = make(source, deadline_s=0.05)
    with pytest.raises(DeadlineExceeded, match="the source is still being read"):
        await one.latest()
    source.open.set()
    await until(lambda: one.known)
    assert (await one.latest()).value >= 1


@pytest.mark.parametrize(
    "error", [ObjectMissing("gone"), StoreUnavailable("away"), CorruptObject("bad"), ValueError()]
)
async def test_a_first_read_that_fails_says_why_and_is_tried_anew(make: Make, error: Exception):
    source = Source()
    source.error = error
    one = make(source)
    with pytest.raises(type(error)):
        await one.latest()
    source.error = None
    assert (await one.latest()).value == 2


async def test_nobody_reads_what_nobody_asks_for(make: Make):
    source, now = Source(), [0.0]
    one = make(source, monotonic=lambda: now[0])
    await one.latest()
    now[0] = IDLE_S + 1
    assert one._task is not None
    await asyncio.wait_for(one._task, 5)
    before = source.reads
    found = await one.latest()
    assert (found.stale, found.value) == (False, before + 1), "it is read anew before it is answered from"


async def test_a_store_that_hangs_after_a_pause_costs_the_deadline_and_gives_the_old_answer(make: Make):
    source, now = Source(), [0.0]
    one = make(source, monotonic=lambda: now[0], deadline_s=0.05)
    await one.latest()
    now[0] = IDLE_S + 1
    assert one._task is not None
    await asyncio.wait_for(one._task, 5)
    source.open.clear()
    async with asyncio.timeout(0.5):
        assert (await one.latest()).stale
    source.open.set()


async def test_the_hub_keeps_the_runs_that_are_asked_for_and_no_names_that_are_none():
    store, threads = MemoryStore(), ThreadPoolExecutor(4)
    for name in "abcd":
        offset_runs.write_run(store, name, 2, groups=1, members=1)
    hub = RunHub(lambda run: RunReader(store, run), threads, most_runs=2)
    try:
        for name in ("a", "b", "nope", "a", "c"):
            if name == "nope":
                with pytest.raises(ObjectMissing):
                    await hub.view(name)
            else:
                assert (await hub.view(name))[1].value.run == name
        assert list(hub._followed) == ["a", "c"]
        assert hub._first == {}
    finally:
        await hub.close()
        threads.shutdown()
    assert len(asyncio.all_tasks()) == 1


async def test_first_readings_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(followed, "MOST_FIRST_READS", 2)
    gate, threads = threading.Event(), ThreadPoolExecutor(4)

    class Slow(RunReader):
        def read(self) -> Any:
            gate.wait(10)
            return super().read()

    hub = RunHub(lambda run: Slow(MemoryStore(), run), threads, deadline_s=0.02)
    try:
        for name in ("a", "b"):
            with pytest.raises(DeadlineExceeded, match="0 of 0 step records"):
                await hub.view(name)
        with pytest.raises(DeadlineExceeded, match="2 runs are being read"):
            await hub.view("c")
        gate.set()
        await until(lambda: all(one.idle for _, one in hub._first.values()))
        with pytest.raises(ObjectMissing):
            await hub.view("c")
        assert hub._first == {}, "nobody has asked again for a and b: they take no place for ever"
    finally:
        gate.set()
        await hub.close()
        threads.shutdown()
