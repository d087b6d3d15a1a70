"""Cancellation at every await: of an episode, and of a whole cell.

A *suspension* is a moment at which a coroutine hands control to the event loop. The k-th one of an undisturbed run is
where the k-th try cancels, for every k in turn (of a cell: every one at first, then a sample).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from driftline.environment import Message, StepResult
from driftline.rollout.episode import Episode
from driftline.store.memory import MemoryStore
from tests.support.rollout import Behaviour, OddFamily, resources, spec, started
from tests.support.toy_run import Cell, ToyTrainer, check_once_each, create_run, toy_parameters


class Suspensions:
    """Awaits a coroutine, and calls `at` before each of its suspensions."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: Callable[[], None]) -> None:
        self._coroutine, self._at = coroutine, at

    def __await__(self) -> Generator[Any, Any, Any]:
        advance: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waits_for = advance()
            except StopIteration as stop:
                return stop.value
            self._at()
            try:
                value = yield waits_for
            except BaseException as error:
                thrown = error
                advance = lambda: self._coroutine.throw(thrown)  # noqa: E731, B023
            else:
                advance = lambda: self._coroutine.send(value)  # noqa: E731, B023


class CancelAt:
    """Counts suspensions, and calls `cancel` at one of them."""

    def __init__(self, number: int) -> None:
        self.seen = 0
        self._number = number
        self.cancel: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        self.seen += 1
        if self.seen == self._number:
            self.cancel()


def patient_family() -> OddFamily:
    """Three turns, and an await in everything."""
    turns: dict[int, int] = {}

    async def pause() -> None:
        await asyncio.sleep(0)

    async def step(action: str) -> StepResult:
        await asyncio.sleep(0)
        task = id(asyncio.current_task())
        turns[task] = turns.get(task, 0) + 1
        if turns[task] % 3 == 0:
            return StepResult(reward=1.0, terminated=True, success=True)
        return StepResult((Message("tool", ":ab\n"),))

    return OddFamily(Behaviour(reset=pause, step=step, close=pause), runs_in="loop")


async def play_one(number: int) -> tuple[int, bool]:
    """Play an episode, cancelled at a suspension; how many there were, and whether it was cancelled."""
    family, engine, at = patient_family(), await started(), CancelAt(number)
    episode = Episode(spec(family.generate(0, 1)[0]), resources(engine, family))

    async def play() -> Any:
        return await Suspensions(episode.play(), at)

    playing = asyncio.create_task(play())
    at.cancel = playing.cancel
    await asyncio.wait([playing])
    assert playing.cancelled() or playing.result().status == "ok"
    assert family.opened == family.closed
    status = engine.status()
    assert (status.running, status.waiting, status.in_flight_tokens) == (0, 0, 0)
    assert status.generated_tokens == episode.sampled_tokens + status.discarded_tokens
    await engine.close()
    assert len(asyncio.all_tasks()) == 1
    return at.seen, playing.cancelled()


async def test_an_episode_may_be_cancelled_at_any_await() -> None:
    """trl#6238: environments leak on error."""
    suspensions, cancelled = await play_one(0)
    assert not cancelled
    assert suspensions >= 8
    assert [(await play_one(number))[1] for number in range(1, suspensions + 1)] == [True] * suspensions


async def run_cell(number: int) -> tuple[int, bool]:
    """Run a cell for three batches, cancelled at a suspension of any of its tasks."""
    params = toy_parameters()
    family, at = patient_family(), CancelAt(number)
    run_store = create_run(MemoryStore(), params, family=family)
    training = asyncio.create_task(ToyTrainer(run_store, params, steps=3).run())
    cell = Cell(run_store, params, family=family)
    loop = asyncio.get_running_loop()

    async def counted(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await Suspensions(coroutine, at)

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(counted(coroutine), loop=loop, **options)
        task.add_done_callback(lambda _: coroutine.close())  # one that was cancelled before it began
        return task

    loop.set_task_factory(make)
    try:
        collecting = asyncio.create_task(cell.run(), name="collecting")
        at.cancel = collecting.cancel
        async with asyncio.timeout(20.0):
            await asyncio.wait([collecting])
    finally:
        loop.set_task_factory(None)
        training.cancel()
        await asyncio.wait([training])
    assert collecting.cancelled() or collecting.exception() is None, collecting.exception()
    assert family.opened == family.closed
    assert len(asyncio.all_tasks()) == 1
    check(run_store, cell)
    return at.seen, collecting.cancelled()


def check(run_store: Any, cell: Cell) -> None:
    """What is written is whole, and every sampled token is somewhere."""
    groups = run_store.new_groups()
    if groups:
        check_once_each(groups, 4)
    report = run_store.offset(cell.name)
    if report is None or cell.engine is None:
        return
    account = report.account
    assert account.generated == account.delivered + account.in_flight + sum(account.cancelled.values())
    written = sum(t.sampled_tokens for group in groups for t in group.trajectories)
    assert account.delivered == written
    assert account.in_flight == 0
    assert account.generated == cell.engine.status().generated_tokens


@pytest.mark.slow
async def test_a_cell_may_be_cancelled_at_any_await_of_any_of_its_tasks() -> None:
    suspensions, cancelled = await run_cell(0)
    assert not cancelled
    assert suspensions > 100
    for number in [*range(1, 60), *range(60, suspensions // 2, 41)]:
        await run_cell(number)
