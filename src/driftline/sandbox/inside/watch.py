"""Looks at the whole tree of processes now and then, and says which limit it is above."""

from __future__ import annotations

import os
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TICK_S = 0.02
"""How often memory, processor time and files are looked at."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Watches one run. The limit that is exceeded, if any, is `exceeded()`.

    `alone` says that this is process 1 of a namespace: all processes there are its, and so are all files on the
    file system of the working folder `root`.
    """

    def __init__(self, limits: dict[str, Any], alone: bool, root: int, timeout_s: float) -> None:
        self.limits = limits
        self.alone = alone
        self.root = root
        self.began = time.monotonic()
        self.deadline = self.began + min(timeout_s, limits["wall_s"])
        self.cpu_before = reaped_cpu_s()
        self.peak_memory = 0
        self.next_look = 0.0

    def cpu_s(self) -> float:
        """Processor time of what has been reaped."""
        return reaped_cpu_s() - self.cpu_before

    def exceeded(self) -> str | None:
        """The limit that is exceeded, or None."""
        now = time.monotonic()
        if now >= self.deadline:
            return "wall"
        if now < self.next_look:
            return None
        self.next_look = now + TICK_S
        return self.look()

    def look(self) -> str | None:
        """Sum over the tree; what is gone meanwhile counts for nothing."""
        limits, memory, ticks = self.limits, 0, 0
        pids = others(self.alone)
        for pid in pids:
            pages, times = read_fields(pid, "statm"), read_fields(pid, "stat")
            if pages and times:
                memory += (int(pages[1]) - int(pages[2])) * PAGE
                ticks += sum(int(value) for value in times[11:15])
        room = os.fstatvfs(self.root)
        if self.alone:
            memory += (room.f_blocks - room.f_bfree) * room.f_frsize
        self.peak_memory = max(self.peak_memory, memory)
        cpu_s = ticks / CLOCK_TICKS + self.cpu_s()
        if memory > limits["memory_bytes"]:
            return "memory"
        if cpu_s > limits["cpu_s"]:
            return "cpu"
        if len(pids) > limits["processes"]:
            return "processes"
        if self.alone and room.f_files - room.f_ffree > limits["files"]:
            return "files"
        return None


def reaped_cpu_s() -> float:
    """Processor time of all children that have been reaped."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def others(alone: bool) -> list[int]:
    """Process ids of all others inside: of the namespace, or else of the descendants."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    own = os.getpid()
    if alone:
        return [pid for pid in pids if pid != own]
    parents: dict[int, int] = {}
    for pid in pids:
        fields = read_fields(pid, "stat")
        if fields:
            parents[pid] = int(fields[1])
    below = [own]
    for pid in below:
        below += [child for child, parent in parents.items() if parent == pid]
    return below[1:]


def read_fields(pid: int, name: str) -> list[bytes]:
    """The fields of a process's file in /proc, those of `stat` from its state on; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
