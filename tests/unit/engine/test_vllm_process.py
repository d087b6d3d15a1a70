"""The engine's process: starts that fail, calls that would hang, deaths, and an end that leaves nothing.

A stand-in takes the place of vLLM's `AsyncLLM`; the processes are real.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import pytest_asyncio

from driftline.engine import vllm_process
from driftline.engine.vllm_process import EngineProcess
from driftline.errors import EngineDied, EngineStartFailed

SPAWN = multiprocessing.get_context("spawn")


class EngineDeadError(Exception):
    """Named like vLLM's."""


class StandIn:
    """Has what `EngineProcess` uses of an `AsyncLLM`, and a real child process."""

    def __init__(self) -> None:
        self.child = SPAWN.Process(target=time.sleep, args=(600,), name="EngineCore_test")
        self.child.start()
        self.shutdowns: list[float] = []
        self.in_flight: list[asyncio.Future[None]] = []
        self.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_dead=False))
        self.output_processor = SimpleNamespace(propagate_error=self._fail)
        self.dead_error = EngineDeadError()

    @property
    def errored(self) -> bool:
        return self.engine_core.resources.engine_dead or not self.child.is_alive()

    def shutdown(self, timeout: float) -> None:
        self.shutdowns.append(timeout)

    async def generate(self) -> None:
        self.in_flight.append(asyncio.get_running_loop().create_future())
        await self.in_flight[-1]

    def _fail(self, error: Exception) -> None:
        for waiting in self.in_flight:
            if not waiting.done():
                waiting.set_exception(error)


@pytest_asyncio.fixture
async def started() -> AsyncIterator[tuple[EngineProcess, Any]]:
    process = EngineProcess(StandIn, start_deadline_s=60)
    await process.start()
    llm = process.llm
    yield process, llm
    await process.close()
    llm.child.join(5)


def alive(pid: int | None) -> bool:
    assert pid is not None
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a thread fulfils it)
            await asyncio.sleep(0.05)


async def test_an_answer_comes_through(started: tuple[EngineProcess, Any]) -> None:
    async def answer() -> int:
        return 7

    assert await started[0].call(answer(), "a question") == 7


async def test_an_error_of_the_call_comes_through(started: tuple[EngineProcess, Any]) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await started[0].call(fail(), "a question")
    started[0].check_alive()


async def test_a_call_that_hangs_ends_the_engine_at_its_deadline(started: tuple[EngineProcess, Any]) -> None:
    """trl#6797: a weight sync that hangs for ever."""
    process, llm = started
    with pytest.raises(EngineDied, match=r"did not answer to pause_generation within 0 s"):
        await process.call(asyncio.Event().wait(), "pause_generation", 0.1)
    assert not alive(llm.child.pid)
    with pytest.raises(EngineDied, match="did not answer"):
        process.check_alive()


async def test_a_call_in_flight_fails_when_the_process_dies(
    started: tuple[EngineProcess, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """SkyRL#1691, #1173: the engine dies and the run hangs."""
    process, llm = started
    call = asyncio.create_task(process.call(asyncio.Event().wait(), "a question", 60))
    request = asyncio.create_task(llm.generate())
    await asyncio.sleep(0)
    os.kill(llm.child.pid, signal.SIGKILL)
    begun = time.monotonic()
    with caplog.at_level(logging.CRITICAL), pytest.raises(EngineDied, match="its process ended"):
        await call
    assert time.monotonic() - begun < 5
    with pytest.raises(EngineDeadError):
        await request
    with pytest.raises(EngineDied):
        await process.call(asyncio.sleep(0), "a question")


async def test_vllms_word_for_death_becomes_ours(started: tuple[EngineProcess, Any]) -> None:
    async def fail() -> None:
        raise EngineDeadError

    with pytest.raises(EngineDied):
        await started[0].call(fail(), "a question")
    assert started[0].dead


async def test_close_leaves_no_process_and_may_be_repeated(started: tuple[EngineProcess, Any]) -> None:
    process, llm = started
    request = asyncio.create_task(llm.generate())
    await asyncio.sleep(0)
    begun = time.monotonic()
    await process.close()
    await process.close()
    assert time.monotonic() - begun < 3
    assert not alive(llm.child.pid)
    assert not [child for child in multiprocessing.active_children() if child.pid == llm.child.pid]
    with pytest.raises(EngineDeadError):
        await request
    with pytest.raises(EngineDied, match="it was closed"):
        process.check_alive()


async def test_before_the_start_nothing_can_be_asked() -> None:
    process = EngineProcess(StandIn, start_deadline_s=1)
    with pytest.raises(EngineDied, match="not started"):
        process.check_alive()
    await process.close()


async def test_a_start_that_raises_tells_the_reason_and_the_log() -> None:
    def build() -> None:
        os.write(2, b"the worker said why\n")
        raise ValueError("no such architecture")

    process = EngineProcess(build, start_deadline_s=60)
    with pytest.raises(EngineStartFailed, match=r"(?s)ValueError: no such architecture.*the worker said why"):
        await process.start()


async def test_a_start_that_exits_is_a_failed_start() -> None:
    def build() -> None:
        raise SystemExit(3)

    with pytest.raises(EngineStartFailed, match="SystemExit: 3"):
        await EngineProcess(build, start_deadline_s=60).start()


async def test_a_start_that_hangs_is_given_up_at_its_deadline_with_its_processes() -> None:
    made: list[StandIn] = []

    def build() -> StandIn:
        made.append(StandIn())
        time.sleep(1.5)
        return made[0]

    process = EngineProcess(build, start_deadline_s=1.0)
    with pytest.raises(EngineStartFailed, match=r"not ready within 1 s: raise engine.start_deadline_s"):
        await process.start()
    assert not alive(made[0].child.pid)
    await until(lambda: made[0].shutdowns)
    assert made[0].shutdowns == [0.0], "the engine that came too late is shut down"


async def test_a_cancelled_start_leaves_no_process() -> None:
    made: list[StandIn] = []

    def build() -> StandIn:
        made.append(StandIn())
        time.sleep(1)
        return made[0]

    start = asyncio.create_task(EngineProcess(build, start_deadline_s=60).start())
    await until(lambda: made)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not alive(made[0].child.pid)


def test_the_name_looked_for_is_the_one_that_vllm_gives() -> None:
    from importlib.util import find_spec
    from pathlib import Path

    package = find_spec("vllm")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).with_name("v1") / "engine" / "utils.py"
    assert f'else "{vllm_process.PROCESS_NAME}"' in source.read_text()
