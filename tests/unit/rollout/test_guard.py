from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.rollout.guard import EnvironmentGuard
from tests.support.rollout import blocks, deaf, forever, spins


@pytest.fixture
def guard() -> Iterator[EnvironmentGuard]:
    guard = EnvironmentGuard(grace_s=0.05)
    with guard.installed():
        yield guard


async def test_it_returns_what_the_environment_returns(guard: EnvironmentGuard) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert await guard.call("step", 1.0, answer) == 42


async def test_an_environment_that_raises_is_not_late(guard: EnvironmentGuard) -> None:
    """verifiers#1543: a timeout of the environment's own is an error, not this deadline."""

    async def own_timeout() -> None:
        raise TimeoutError("the database")

    with pytest.raises(EnvironmentFailed, match="step raised TimeoutError: the database"):
        await guard.call("step", 1.0, own_timeout)


async def test_system_exit_does_not_end_the_process(guard: EnvironmentGuard) -> None:
    async def leaves() -> None:
        raise SystemExit(3)

    with pytest.raises(EnvironmentFailed, match=r"SystemExit\(3\)"):
        await guard.call("step", 1.0, leaves)


@pytest.mark.parametrize("misbehaves", [forever, deaf, blocks, spins])
async def test_whatever_never_returns_is_ended(guard: EnvironmentGuard, misbehaves: object) -> None:
    before = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"step took longer than 0.1 s: raise environment.step_deadline_s"):
        await guard.call("step", 0.1, misbehaves)  # pyright: ignore[reportArgumentType]
    assert time.monotonic() - before < 5.0
    assert len(asyncio.all_tasks()) == 1


async def test_one_that_is_deaf_is_ended_though_the_loop_was_late(
    guard: EnvironmentGuard,
) -> None:
    call = asyncio.create_task(guard.call("step", 0.05, deaf))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 (as a busy machine does)
    async with asyncio.timeout(5.0):
        with pytest.raises(DeadlineExceeded):
            await call


async def test_blocking_is_told_from_waiting(guard: EnvironmentGuard) -> None:
    with pytest.raises(DeadlineExceeded, match="blocked the event loop"):
        await guard.call("step", 0.05, blocks)


async def test_others_get_back_the_time_that_one_blocked(guard: EnvironmentGuard) -> None:
    """verifiers#1170: one deadline shared by all."""

    async def quick() -> str:
        await asyncio.sleep(0.01)
        return "done"

    others = [asyncio.create_task(guard.call("step", 0.15, quick)) for _ in range(3)]
    culprit = asyncio.create_task(guard.call("step", 0.15, blocks))
    assert await asyncio.gather(*others) == ["done"] * 3
    with pytest.raises(DeadlineExceeded):
        await culprit


async def test_a_clean_up_may_take_the_grace(guard: EnvironmentGuard) -> None:
    cleaned = False

    async def tidy() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned = True

    with pytest.raises(DeadlineExceeded):
        await guard.call("step", 0.05, tidy)
    assert cleaned


async def in_time(seconds: float) -> bool:
    """Wait under a deadline as environments have them within."""
    try:
        async with asyncio.timeout(0.005):
            await asyncio.sleep(seconds)
    except TimeoutError:
        return False
    return True


async def test_deadlines_within_an_environment_are_its_own_business(guard: EnvironmentGuard) -> None:
    """They cancel the task, as those of the caller do, and take that back."""

    async def tries_again() -> list[bool]:
        return [await in_time(seconds) for seconds in (1.0, 1.0, 0.0, 1.0)]

    assert await guard.call("step", 10.0, tries_again) == [False, False, True, False]


async def test_a_deadline_within_begins_no_grace(guard: EnvironmentGuard) -> None:
    async def goes_on() -> str:
        assert not await in_time(1.0)
        await asyncio.sleep(4 * guard.grace_s)
        return "done"

    assert await guard.call("step", 10.0, goes_on) == "done"


@pytest.mark.parametrize("ends", ["its deadline", "a cancel"])
async def test_after_a_deadline_within_the_callers_hold_on(guard: EnvironmentGuard, ends: str) -> None:
    told = 0

    async def hangs() -> None:
        nonlocal told
        while True:
            try:
                await in_time(1.0)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told += 1

    call = asyncio.create_task(guard.call("step", 0.1 if ends == "its deadline" else 10.0, hangs))
    await asyncio.sleep(0.03)
    if ends == "a cancel":
        call.cancel()
        await asyncio.sleep(0.03)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        with pytest.raises(DeadlineExceeded):
            await call
    assert told == 1, "and it does not listen: the second time it is abandoned"


async def test_a_result_after_the_deadline_does_not_count(guard: EnvironmentGuard) -> None:
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "never"

    with pytest.raises(DeadlineExceeded):
        await guard.call("step", 0.05, late)


async def test_cancellation_passes_through(guard: EnvironmentGuard) -> None:
    call = asyncio.create_task(guard.call("step", 10.0, forever))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_it_leaves_signals_as_they_were_though_guards_overlap() -> None:
    before = signal.getsignal(signal.SIGALRM)
    first, second = EnvironmentGuard().installed(), EnvironmentGuard().installed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGALRM) != before
    second.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
