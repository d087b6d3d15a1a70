from __future__ import annotations

import asyncio
import time

import pytest

from driftline.errors import DeadlineExceeded, NoProgress
from driftline.rollout.meters import LagMeter
from driftline.rollout.watchdog import Watchdog
from driftline.store.memory import MemoryStore
from tests.support.rollout import Behaviour, OddFamily, forever
from tests.support.toy_run import Cell, ToyTrainer, create_run, toy_parameters


async def test_work_without_progress_is_ended_with_every_stack_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """prime-rl#1713: a silent hang."""

    async def lost_wake_up() -> None:
        await asyncio.Event().wait()

    watchdog = Watchdog("c0", 0.2, works=lambda: True, progress=lambda: 0)
    async with LagMeter().measured(watchdog.beat):
        with pytest.raises(NoProgress, match=r"no progress for 0.2 s \(no episode.*raise limits.watchdog_s"):
            await watchdog.watch(lost_wake_up())
    assert "lost_wake_up" in caplog.text
    assert "thread MainThread" in caplog.text
    assert "thread watchdog" in caplog.text
    assert issubclass(NoProgress, DeadlineExceeded), "a restart may mend it"


async def test_progress_or_nothing_to_do_keeps_it_quiet() -> None:
    async def work() -> None:
        await asyncio.sleep(0.5)

    began = time.monotonic()
    for works, progress in ((lambda: True, lambda: int(20 * (time.monotonic() - began))), (lambda: False, lambda: 0)):
        watchdog = Watchdog("c0", 0.2, works=works, progress=progress)
        async with LagMeter().measured(watchdog.beat):
            await watchdog.watch(work())


async def test_a_blocked_loop_is_seen_from_outside(caplog: pytest.LogCaptureFixture) -> None:
    told: list[NoProgress] = []

    async def blocks_the_loop() -> None:
        time.sleep(1.0)  # noqa: ASYNC251
        await asyncio.Event().wait()

    watchdog = Watchdog("c0", 0.2, works=lambda: False, progress=lambda: 0, on_deaf=told.append, deaf_s=0.1)
    async with LagMeter().measured(watchdog.beat):
        with pytest.raises(NoProgress, match="event loop is blocked"):
            await watchdog.watch(blocks_the_loop())
    assert [type(error) for error in told] == [NoProgress]
    assert "time.sleep(1.0)" in caplog.text


async def test_cancelling_and_failing_pass_through() -> None:
    async def fails() -> None:
        raise ValueError("of its own")

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="of its own"):
        await Watchdog("c0", 5.0, works=lambda: True, progress=lambda: 0).watch(fails())
    watching = asyncio.create_task(Watchdog("c0", 5.0, works=lambda: True, progress=lambda: 0).watch(waits()))
    await asyncio.sleep(0)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_a_cell_whose_environments_all_hang_is_ended_and_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = toy_parameters(environment={"step_deadline_s": 60.0}, limits={"watchdog_s": 3.0})
    family = OddFamily(Behaviour(step=forever))
    run_store = create_run(MemoryStore(), params, family=family)
    training = asyncio.create_task(ToyTrainer(run_store, params, steps=3).run())
    async with asyncio.timeout(30.0):
        with pytest.raises(NoProgress):
            await Cell(run_store, params, family=family).run()
    training.cancel()
    await asyncio.wait([training])
    assert family.opened == family.closed > 0
    assert "episode 0.0" in caplog.text
    assert len(asyncio.all_tasks()) == 1


async def test_the_lag_is_what_the_loop_is_late() -> None:
    meter = LagMeter()
    async with meter.measured():
        await asyncio.sleep(0.1)
        time.sleep(0.15)  # noqa: ASYNC251
        await asyncio.sleep(0.05)
    figures = meter.take()
    assert figures is not None
    assert figures.max_s > 0.1
    assert figures.p50_s <= figures.p99_s <= figures.max_s
    assert meter.take() is None
    assert meter.newest == figures
