"""Environments in threads, warm ones, and what those cost that block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from driftline.environment import Message, StepResult, Task
from driftline.errors import DeadlineExceeded, EnvironmentFailed, LimitExceeded
from driftline.rollout.guard import EnvironmentBlocked, EnvironmentGuard
from driftline.rollout.pool import EnvironmentPool, placement_of
from driftline.rollout.threads import EnvironmentThread
from environments import FAMILIES
from tests.support.rollout import Behaviour, OddFamily, deaf, forever, spins

GRACE_S = 0.1


class Stuck:
    """Blocks its thread in a call that nothing interrupts, until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    async def __call__(self, *_: object) -> Any:
        self.released.wait(30.0)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.released.set()


def pool_of(family: Any, **options: Any) -> EnvironmentPool:
    defaults: dict[str, Any] = {"placement": "thread", "workers": 2, "grace_s": GRACE_S}
    return EnvironmentPool(family, EnvironmentGuard(grace_s=GRACE_S), **(defaults | options))


@asynccontextmanager
async def a_thread(grace_s: float = GRACE_S) -> AsyncIterator[EnvironmentThread]:
    async with pool_of(OddFamily(), workers=1, grace_s=grace_s) as pool:
        host = pool.seat("s").host
        assert isinstance(host, EnvironmentThread)
        yield host


async def test_it_returns_what_the_environment_returns_in_another_thread() -> None:
    async def where() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async with a_thread() as thread:
        assert await thread.call("step", 1.0, where) == "environments-1"
    assert not thread.alive


async def test_errors_pass_through_and_system_exit_ends_nothing() -> None:
    async def raises() -> None:
        raise ValueError("broken")

    async def leaves() -> None:
        raise SystemExit(3)

    async with a_thread() as thread:
        with pytest.raises(EnvironmentFailed, match="step raised ValueError: broken"):
            await thread.call("step", 1.0, raises)
        with pytest.raises(EnvironmentFailed, match=r"SystemExit\(3\)"):
            await thread.call("step", 1.0, leaves)


@pytest.mark.parametrize("misbehaves", [forever, deaf, spins])
async def test_what_never_returns_is_ended_and_the_thread_goes_on(misbehaves: Any) -> None:
    async def fine() -> int:
        return 1

    async with a_thread() as thread:
        with pytest.raises(DeadlineExceeded, match=r"step took longer than 0.1 s: raise environment.step_deadline_s"):
            await thread.call("step", 0.1, misbehaves)
        assert await thread.call("step", 1.0, fine) == 1
        assert not thread.lost


async def test_the_loop_of_the_collector_goes_on_while_an_environment_blocks() -> None:
    """prime-rl#1713: event-loop lag."""
    longest, before, ended = 0.0, time.monotonic(), False

    async def heartbeat() -> None:
        nonlocal longest, before
        while not ended:
            await asyncio.sleep(0.005)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()

    async def blocks() -> None:
        time.sleep(0.5)  # noqa: ASYNC251

    beating = asyncio.create_task(heartbeat())
    async with a_thread() as thread:
        await thread.call("step", 5.0, blocks)
    ended = True
    await beating
    assert longest < 0.25


async def test_a_blocked_thread_is_replaced_its_others_fail_and_it_ends_when_it_comes_back(stuck: Stuck) -> None:
    async with pool_of(OddFamily(), workers=1) as pool:
        first, second = pool.seat("s"), pool.seat("s")
        assert first.host is second.host
        waiting = asyncio.create_task(second.host.call("step", 30.0, forever))
        await asyncio.sleep(0.02)
        with pytest.raises(DeadlineExceeded, match="the thread is lost"):
            await first.host.call("step", 0.1, stuck)
        with pytest.raises(EnvironmentFailed, match="lost to another environment"):
            await waiting
        with pytest.raises(EnvironmentFailed, match="lost to another environment"):
            await second.host.call("step", 1.0, stuck)
        assert pool.figures.threads_lost == 1
        third = pool.seat("s")
        assert third.host is not first.host
        assert await third.host.call("step", 1.0, _one) == 1
        stuck.released.set()
        async with asyncio.timeout(5.0):
            while pool.figures.threads_lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def _one() -> int:
    return 1


async def test_more_lost_threads_than_allowed_are_an_error_that_says_what_to_do(stuck: Stuck) -> None:
    async with pool_of(OddFamily(), workers=1, lost_threads=1) as pool:
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await pool.seat("s").host.call("step", 0.05, stuck)
        with pytest.raises(LimitExceeded, match=r"limits\.lost_threads allows 1.*environment\.runs_in to process"):
            pool.seat("s")


async def test_cancellation_waits_for_the_environment_to_clean_up() -> None:
    begun = cleaned = False

    async def tidy() -> None:
        nonlocal begun, cleaned
        begun = True
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            cleaned = True

    async with a_thread(10.0) as thread:
        call = asyncio.create_task(thread.call("step", 10.0, tidy))
        while not begun:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert cleaned


async def test_others_of_a_thread_get_back_the_time_that_one_held_it() -> None:
    """verifiers#1170: one deadline shared by all."""

    async def patient() -> str:
        await asyncio.sleep(0.25)
        return "done"

    async def holds() -> None:
        await asyncio.sleep(0.01)
        time.sleep(0.2)  # noqa: ASYNC251

    async with a_thread() as thread:
        other = asyncio.create_task(thread.call("step", 0.3, patient))
        await thread.call("step", 1.0, holds)
        late = asyncio.create_task(thread.call("step", 1.0, holds))
        assert await other == "done"
        await late


async def test_an_interruption_that_comes_too_late_does_not_hit_the_loop() -> None:
    async with a_thread() as thread:
        for _ in range(30):
            thread._stretch = None  # pyright: ignore[reportPrivateUsage]
            from driftline.rollout.threads import _raise_in  # pyright: ignore[reportPrivateUsage]

            _raise_in(thread._thread, EnvironmentBlocked)  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.001)
        assert await thread.call("step", 1.0, _one) == 1


def test_a_family_says_where_it_runs() -> None:
    assert placement_of(FAMILIES["pointer_chase/v1"], "declared") == "loop"
    assert placement_of(OddFamily(), "declared") == "thread"
    assert placement_of(FAMILIES["pointer_chase/v1"], "thread") == "thread"


# ---- warm environments


@dataclass
class Reusable:
    """Remembers what it was told until it is recycled."""

    family: ReusableFamily
    heard: list[str] = field(default_factory=list[str])
    closed: bool = False

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        assert self.heard == [], "something is left of the episode before"
        assert not self.closed
        await asyncio.sleep(0.02)
        return (Message("user", "?ab\n"),)

    async def step(self, action: str) -> StepResult:
        self.heard.append(action)
        return StepResult(reward=float(len(self.heard)), terminated=True, success=True)

    async def recycle(self) -> bool:
        if not self.family.recycles:
            return False
        self.heard.clear()
        return True

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.family.closed += 1


class ReusableFamily(OddFamily):
    recycles: bool = True

    def make(self, *, max_turns: int = 20) -> Any:
        self.opened += 1
        return Reusable(self)


async def play_one(pool: EnvironmentPool, task_set: str = "s", *, reusable: bool = True) -> None:
    seat = pool.seat(task_set)
    if seat.environment is None:
        seat.environment = pool.make(max_turns=3)
    environment = seat.environment
    await seat.host.call("reset", 1.0, lambda: environment.reset(OddFamily().generate(0, 1)[0], 0))
    result = await seat.host.call("step", 1.0, lambda: environment.step("x"))
    assert result.reward == 1.0
    await pool.leave(seat, ended_by_itself=reusable)


@pytest.mark.parametrize("placement", ["loop", "thread"])
async def test_warm_environments_play_on_with_nothing_left_and_are_closed_at_the_end(placement: str) -> None:
    family = ReusableFamily()
    async with pool_of(family, placement=placement, warm=2) as pool:
        for _ in range(5):
            await play_one(pool)
        assert (family.opened, family.closed) == (1, 0)
        assert (pool.figures.made, pool.figures.reused) == (1, 4)
        await asyncio.gather(*(play_one(pool) for _ in range(4)))
        assert family.opened == 4
        assert family.closed == 2
    assert family.closed == family.opened


async def test_an_environment_is_not_used_again_after_a_failure_or_when_it_declines() -> None:
    family = ReusableFamily()
    async with pool_of(family, warm=2) as pool:
        await play_one(pool, reusable=False)
        assert (family.opened, family.closed) == (1, 1)
        family.recycles = False
        await play_one(pool)
        await play_one(pool)
        assert (family.opened, family.closed) == (3, 3)


async def test_warm_environments_belong_to_their_task_set() -> None:
    family = ReusableFamily()
    async with pool_of(family, warm=1) as pool:
        await play_one(pool, "old")
        await play_one(pool, "new")
        assert (family.opened, family.closed) == (2, 1)
        await play_one(pool, "new")
        assert family.opened == 2


async def test_those_that_cannot_be_reused_are_closed_each_time() -> None:
    family = OddFamily(Behaviour())
    async with pool_of(family, warm=4) as pool:
        await play_one(pool)
        await play_one(pool)
    assert (family.opened, family.closed) == (2, 2)


async def breaks(*_: object) -> Any:
    raise ValueError("broken")


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(), Behaviour(step=breaks), Behaviour(step=forever), Behaviour(close=breaks), Behaviour(close=forever)],
)
async def test_a_place_is_free_again_however_its_episode_ends(
    behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trl#6238: places of a pool leak on error."""
    monkeypatch.setattr("driftline.rollout.pool.CLOSE_DEADLINE_S", 0.1)
    async with pool_of(OddFamily(behaviour), workers=4) as pool:
        for _ in range(4):
            seat = pool.seat("s")
            assert isinstance(seat.host, EnvironmentThread)
            assert (seat.host.name, seat.host.environments) == ("environments-1", 1), "of four, the one that is free"
            environment = seat.environment = pool.make(max_turns=3)
            with contextlib.suppress(EnvironmentFailed, DeadlineExceeded):
                await seat.host.call("step", 0.1, lambda: environment.step("x"))  # noqa: B023
            with contextlib.suppress(EnvironmentFailed, DeadlineExceeded):
                await pool.leave(seat, ended_by_itself=False)
