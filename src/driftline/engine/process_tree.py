"""The processes that a library has started for us, and their sure end."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
from collections.abc import Iterable

import psutil

logger = logging.getLogger(__name__)

GONE_DEADLINE_S = 5.0


def children_named(prefix: str) -> dict[int, psutil.Process]:
    """Children of this process that `multiprocessing` started under such a name, by process id."""
    found: dict[int, psutil.Process] = {}
    for child in multiprocessing.active_children():
        if child.pid is not None and child.name.startswith(prefix):
            with contextlib.suppress(psutil.Error):
                found[child.pid] = psutil.Process(child.pid)
    return found


def with_descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes and all of their descendants, as they are now."""
    found = {process.pid: process for process in processes}
    for process in list(found.values()):
        with contextlib.suppress(psutil.Error):
            found |= {child.pid: child for child in process.children(recursive=True)}
    return list(found.values())


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes and wait until they are gone; those that are gone already are passed over.

    A process id that has been given to another process in the meantime is left alone.
    """
    killed: set[int] = set()
    others: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
            killed.add(process.pid)
            others.append(process)
    # Direct children are reaped by multiprocessing, which loses count of them otherwise.
    for child in multiprocessing.active_children():
        if child.pid in killed:
            child.join(GONE_DEADLINE_S)
    _, alive = psutil.wait_procs(others, timeout=GONE_DEADLINE_S)
    if alive:
        logger.error("these processes do not end: %s", [process.pid for process in alive])
