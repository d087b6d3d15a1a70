"""Processes of a run, supervised as the flow runs of cell and trainer do it, without the stack around them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from random import Random

import psutil

from driftline.engine.environment_variables import engine_environment
from driftline.params import RunParameters
from driftline.process import supervise
from driftline.records import Head
from driftline.store.run_store import RunStore
from tasks.processes import run_until_over
from tests.faults.verification import Observer

CELL, TRAINER = "driftline.rollout.cell", "driftline.training.entry"
DEADLINE_S = 150.0


class RunProcesses:
    """The processes of one run, each started again within `restarts` until the run is over."""

    def __init__(self, run_store: RunStore, params: RunParameters, observer: Observer, *, restarts: int = 5) -> None:
        self._run_store = run_store
        self._environment = {
            **os.environ,
            "DS_ACCELERATOR": "cpu",
            **engine_environment(params.engine, os.environ),
        }
        self._observer = observer
        self._restarts = restarts
        self._working: list[asyncio.Task[None]] = []

    def start(self, module: str, *arguments: str) -> None:
        """Start a process."""

        async def once() -> None:
            await supervise(
                [sys.executable, "-m", module, "--run", self._run_store.run, *arguments], env=self._environment
            )

        work = run_until_over(once, self._run_store, name=module, limit=self._restarts, limit_field="limits")
        self._working.append(asyncio.create_task(work, name=f"{module} {arguments}"))

    @property
    def step(self) -> int:
        """The last committed step; raises what a process has failed with."""
        for task in self._working:
            if task.done():
                task.result()
        head: Head | None = self._observer.head
        return 0 if head is None else head.step

    async def until_step(self, step: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until a step is committed."""
        await until(lambda: self.step >= step, f"step {step}", deadline_s)

    async def kill(self, module: str, rng: Random) -> None:
        """SIGKILL one process of a kind, as soon as there is one."""
        victims: list[psutil.Process] = []

        def found() -> bool:
            victims[:] = [child for child in psutil.Process().children() if module in child.cmdline()]
            return bool(victims)

        await until(found, f"a process of {module}")
        os.kill(rng.choice(victims).pid, signal.SIGKILL)

    async def wait(self, deadline_s: float = DEADLINE_S) -> None:
        """Wait until all have ended well."""
        await asyncio.wait_for(asyncio.gather(*self._working), deadline_s)

    async def end(self) -> None:
        """End them all, and the observer."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await asyncio.to_thread(self._observer.stop)


async def until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come in {deadline_s:.0f} s"
        await asyncio.sleep(0.05)
