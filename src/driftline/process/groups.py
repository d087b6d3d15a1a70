"""Signals to process groups, and to descendants that have left them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def signal_name(number: int) -> str:
    """`SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_group(group: int, token: str | None, number: signal.Signals) -> None:
    """Signal a process group, and with a token also the descendants that have left it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in holders(token) if token else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def holders(token: str) -> list[int]:
    """Processes whose environment carries the token. Empty where there is no /proc."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if token.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def signal_own(number: signal.Signals) -> None:
    """Signal this process last, after its descendants and, where it leads one, its group."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), number)
    else:
        os.kill(os.getpid(), number)


def descendants(root: int) -> list[int]:
    """Children of children, from /proc; empty where there is none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
