"""Environments in processes of their own: the same answers, and whatever they do, they can be killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from driftline.environment import Task, resolve
from driftline.errors import ConfigurationError
from driftline.rollout.environment_child import LOOK_EVERY
from driftline.rollout.episode import Episode
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.pool import EnvironmentPool
from driftline.rollout.processes import START_DEADLINE_S
from tests.support.environments import Blocks
from tests.support.rollout import FAMILY, resources, spec, started

SUPPORT = "tests.support.environments"
DEADLINES_S: dict[str, Any] = {"step_deadline_s": 120.0, "episode_deadline_s": 120.0}


@asynccontextmanager
async def processes(name: str, *, workers: int = 2, **options: Any) -> AsyncIterator[EnvironmentPool]:
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    pool = EnvironmentPool(
        resolve(name), EnvironmentGuard(grace_s=1.0), placement="process", workers=workers, name=name, **options
    )
    async with pool:
        yield pool
    left = {child.pid for child in psutil.Process().children(recursive=True)} - children
    assert left == set()


async def play(pool: EnvironmentPool, task: Task, **limits: Any) -> Any:
    engine = await started()
    trajectory = await Episode(spec(task), replace(resources(engine, **limits), pool=pool)).play()
    await engine.close()
    return trajectory


def forward(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Put the clock of the event loop forward: every deadline of less that runs now has passed."""
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + seconds)


async def starting(pool: EnvironmentPool, gate: Path, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[Any]:
    """An episode whose process has begun to start, and goes on when `gate / "go"` is there."""
    monkeypatch.setenv("STARTS_LATE", str(gate))
    playing = asyncio.create_task(play(pool, FAMILY.generate(1, 1)[0], **DEADLINES_S))
    while not (gate / "begun").exists():  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.01)
    return playing


async def test_an_episode_is_the_same_as_in_the_loop_and_the_process_plays_the_next() -> None:
    tasks = FAMILY.generate(1, 3)
    others = {child.pid for child in psutil.Process().children()}
    async with processes("pointer_chase/v1", workers=1) as pool:
        for task in tasks:
            engine = await started()
            here = await Episode(spec(task), resources(engine)).play()
            await engine.close()
            there = await play(pool, task, step_deadline_s=60.0)
            assert (there.token_ids, there.reward, there.status) == (here.token_ids, here.reward, here.status)
        (child,) = [child for child in psutil.Process().children() if child.pid not in others]
        assert "environment_child" in " ".join(child.cmdline())


async def test_a_process_that_died_while_nobody_played_in_it_costs_no_episode() -> None:
    """As the kernel ends one when memory runs out."""
    task = FAMILY.generate(1, 1)[0]
    others = {child.pid for child in psutil.Process().children()}
    async with processes("pointer_chase/v1", workers=1) as pool:
        assert (await play(pool, task, step_deadline_s=60.0)).reward == 1.0
        [child] = [child for child in psutil.Process().children() if child.pid not in others]
        child.kill()
        assert pool._processes is not None  # pyright: ignore[reportPrivateUsage]
        [idle] = pool._processes._idle  # pyright: ignore[reportPrivateUsage]
        async with asyncio.timeout(10.0):
            while idle.usable:  # noqa: ASYNC110 (asyncio learns of the death in a thread)
                await asyncio.sleep(0.01)
        trajectory = await play(pool, task, step_deadline_s=60.0)
        assert (trajectory.status, trajectory.reward) == ("ok", 1.0)


async def test_what_blocks_in_a_process_is_killed_and_costs_nothing() -> None:
    assert isinstance(resolve(f"{SUPPORT}:Blocks"), Blocks)
    async with processes(f"{SUPPORT}:Blocks", workers=1) as pool:
        for _ in range(2):
            before = time.monotonic()
            trajectory = await play(pool, FAMILY.generate(1, 1)[0], step_deadline_s=8.0)
            assert (trajectory.status, trajectory.reward) == ("timeout", None)
            assert time.monotonic() - before < 20.0


async def test_what_an_environment_leaks_ends_with_it() -> None:
    async with processes(f"{SUPPORT}:Leaks", workers=1) as pool:
        trajectory = await play(pool, FAMILY.generate(1, 1)[0], step_deadline_s=60.0)
        assert trajectory.reward == 1.0
        leaked = [child for child in psutil.Process().children(recursive=True) if "sleep" in child.name()]
        assert leaked
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in leaked)


async def test_what_environments_leak_in_a_long_run_is_killed_and_costs_no_episode(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("driftline.rollout.processes.MOST_LEFT", 4)
    most = 0
    async with processes(f"{SUPPORT}:Leaks", workers=1) as pool:
        for _ in range(2 * LOOK_EVERY + 1):
            trajectory = await play(pool, FAMILY.generate(1, 1)[0], step_deadline_s=60.0)
            assert (trajectory.status, trajectory.reward) == ("ok", 1.0)
            alive = [one for one in psutil.Process().children(recursive=True) if one.name() == "sleep"]
            most = max(most, len(alive))
    assert LOOK_EVERY - 1 <= most <= LOOK_EVERY
    assert [record.message for record in caplog.records if "left" in record.message] == [
        "closed environments have left 8 processes: all of them are killed"
    ] * 2


@pytest.mark.parametrize(("name", "reason"), [("Raises", "ZeroDivisionError: broken"), ("Exits", "exit code 7")])
async def test_errors_and_deaths_are_told(name: str, reason: str) -> None:
    async with processes(f"{SUPPORT}:{name}", workers=1) as pool:
        trajectory = await play(pool, FAMILY.generate(1, 1)[0], step_deadline_s=60.0)
        assert (trajectory.status, trajectory.reward) == ("env_error", None)
        assert reason in trajectory.reason


async def test_ten_megabytes_do_not_leave_the_process() -> None:
    async with processes(f"{SUPPORT}:TenMegabytes", longest=200_000) as pool:
        trajectory = await play(pool, FAMILY.generate(1, 1)[0], step_deadline_s=60.0)
        assert (trajectory.status, trajectory.reward) == ("truncated", None)
        assert "context" in trajectory.reason


async def test_cancelling_while_waiting_for_a_process_frees_the_place() -> None:
    async with processes("pointer_chase/v1", workers=1) as pool:
        first, second = pool.seat("s"), pool.seat("s")
        await pool.ready(first, max_turns=3)
        waiting = asyncio.create_task(pool.ready(second, max_turns=3))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await pool.leave(second, ended_by_itself=False)
        await pool.leave(first, ended_by_itself=False)
        third = pool.seat("s")
        await pool.ready(third, max_turns=3)
        await pool.leave(third, ended_by_itself=False)


async def test_an_episode_that_waits_for_a_process_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """verifiers#1170: one deadline shared by all."""
    async with processes("pointer_chase/v1", workers=1) as pool:
        seat = pool.seat("s")
        await pool.ready(seat, max_turns=3)
        playing = asyncio.create_task(play(pool, FAMILY.generate(1, 1)[0], **DEADLINES_S))
        await asyncio.wait([playing], timeout=0.1)
        forward(monkeypatch, 3600.0)
        done, _ = await asyncio.wait([playing], timeout=0.1)
        assert not done
        await pool.leave(seat, ended_by_itself=False)
        trajectory = await playing
        assert (trajectory.status, trajectory.reward) == ("ok", 1.0)


async def test_an_episode_whose_process_starts_slowly_is_not_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with processes(f"{SUPPORT}:StartsLate", workers=1) as pool:
        playing = await starting(pool, tmp_path, monkeypatch)
        forward(monkeypatch, 150.0)
        done, _ = await asyncio.wait([playing], timeout=0.1)
        assert not done
        (tmp_path / "go").touch()
        trajectory = await playing
        assert (trajectory.status, trajectory.reward) == ("ok", 1.0)


async def test_a_process_that_does_not_come_up_is_killed_and_frees_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with processes(f"{SUPPORT}:StartsLate", workers=1) as pool:
        playing = await starting(pool, tmp_path, monkeypatch)
        forward(monkeypatch, START_DEADLINE_S + 1.0)
        trajectory = await playing
        assert (trajectory.status, trajectory.reward) == ("timeout", None)
        assert "was not up within 300 s" in trajectory.reason
        (tmp_path / "go").touch()
        assert (await play(pool, FAMILY.generate(1, 1)[0], **DEADLINES_S)).status == "ok"


@pytest.mark.parametrize("freed", [False, True], ids=["that_stays_taken", "that_is_freed_just_then"])
async def test_an_episode_that_waits_for_a_process_can_be_cancelled(freed: bool) -> None:
    async with processes("pointer_chase/v1", workers=1) as pool:
        seat, engine = pool.seat("s"), await started()
        await pool.ready(seat, max_turns=3)
        episode = Episode(spec(FAMILY.generate(1, 1)[0]), replace(resources(engine, **DEADLINES_S), pool=pool))
        playing = asyncio.create_task(episode.play())
        await asyncio.sleep(0)
        if freed:
            await pool.leave(seat, ended_by_itself=False)
        episode.cancel("it could only arrive too old")
        assert (await playing).status == "cancelled"
        if not freed:
            await pool.leave(seat, ended_by_itself=False)
        await pool.ready(again := pool.seat("s"), max_turns=3)
        await pool.leave(again, ended_by_itself=False)
        await engine.close()


def test_a_family_without_a_name_cannot_run_in_processes() -> None:
    with pytest.raises(ConfigurationError, match=r"environment\.id"):
        EnvironmentPool(FAMILY, EnvironmentGuard(), placement="process")
