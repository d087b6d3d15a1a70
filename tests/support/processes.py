"""Whether processes are still there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

import psutil


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that run; zombies do not."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


async def all_gone(pids: Iterable[int], deadline_s: float = 5.0) -> bool:
    """Wait until none of the processes runs."""
    watched, deadline = list(pids), time.monotonic() + deadline_s
    while alive(watched):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
