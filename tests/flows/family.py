"""Flows that stand in for rollout and training where only their fate matters: deployed by tests, run by workers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from prefect import flow

from driftline.errors import EngineDied
from driftline.process import supervise
from tasks.lifeline import while_parent_lives

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), grandchild.pid, file=open(sys.argv[1] + ".new", "w"), flush=True)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
"""A process that does not listen to SIGTERM, with one of its own."""


@flow(name="works")
async def works(pids: str) -> None:
    """Run a stubborn process for ten minutes; its pids go to a file."""
    await while_parent_lives(supervise([sys.executable, "-c", STUBBORN, pids], stop_deadline_s=3.0))


@flow(name="fails")
async def fails(after: str) -> None:
    """Fail as soon as a file is there."""
    async with asyncio.timeout(120):
        while not Path(after).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)
    raise EngineDied("the engine ran out of memory")
