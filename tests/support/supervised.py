"""Children for the supervisor, from a few lines of code, and what they say."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

PREAMBLE = """
import asyncio, os, signal, subprocess, sys, threading, time
from driftline import errors
from driftline.process import child_main, emit
"""
IGNORING = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def child(tmp_path: Path, code: str, name: str = "child.py") -> list[str]:
    script = tmp_path / name
    script.write_text(PREAMBLE + textwrap.dedent(code))
    return [sys.executable, str(script)]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive(pid):
            return True
        time.sleep(0.02)
    return False


class Ear:
    """Notes what a child says; `heard` waits for an event of a kind."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.log: list[str] = []
        self._news = asyncio.Event()

    def on_event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        self._news.set()

    async def heard(self, kind: str) -> Mapping[str, Any]:
        async with asyncio.timeout(30):
            while True:
                for event in self.events:
                    if event["event"] == kind:
                        return event
                self._news.clear()
                await self._news.wait()
