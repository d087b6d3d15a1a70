"""Finding and ending the processes of a stack.

Every process of a stack carries `DRIFTLINE_STACK=<stack directory>` in its environment: the supervisor is started
with it and all others inherit it. So they are found even when the supervisor was killed and whatever their
parents, sessions and names are. `SPT_NOENV` (see `environment.py`) keeps programs that set their own title
from overwriting it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

STACK_VARIABLE = "DRIFTLINE_STACK"
TERMINATE_S = 12.0
KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that was ended, and how."""

    pid: int
    command: str
    killed: bool


def marked(root: Path) -> list[psutil.Process]:
    """The living processes of the stack at `root`, oldest first; never this one or an ancestor of it."""
    mine = {process.pid for process in [psutil.Process(), *psutil.Process().parents()]}
    found = [process for process in psutil.process_iter() if process.pid not in mine and _carries(process, root)]
    return sorted(found, key=_created)


def supervisors(root: Path, configuration: Path) -> list[psutil.Process]:
    """The stack's supervisord, known by its mark and its configuration file; more than one only after a race."""
    return [process for process in marked(root) if str(configuration) in _command(process)]


def ancestors(process: psutil.Process) -> set[int]:
    """The ids of a process's parents; empty when it has ended."""
    try:
        return {parent.pid for parent in process.parents()}
    except psutil.Error:
        return set()


def end(processes: Iterable[psutil.Process], *, terminate_s: float = TERMINATE_S) -> list[Ended]:
    """SIGTERM to all, SIGKILL to what is left after `terminate_s` seconds. Returns what was ended."""
    commands = {process: " ".join(_command(process))[:100] for process in processes}
    for process in commands:
        _signal(process, kill=False)
    alive = _wait_all(commands, terminate_s)
    for process in alive:
        _signal(process, kill=True)
    _wait_all(alive, KILL_S)
    survivors = {process.pid for process in alive}
    return [Ended(process.pid, command, process.pid in survivors) for process, command in commands.items()]


def end_marked(root: Path, *, terminate_s: float = TERMINATE_S, sweeps: int = 5) -> list[Ended]:
    """End every process of the stack, those too that are started meanwhile."""
    ended: list[Ended] = []
    for _ in range(sweeps):
        left = marked(root)
        if not left:
            break
        ended += end(left, terminate_s=terminate_s)
    return ended


def wait_gone(process: psutil.Process, deadline_s: float) -> bool:
    """Whether the process was gone (or a zombie) within the deadline."""
    return not _wait_all([process], deadline_s)


def _wait_all(processes: Iterable[psutil.Process], deadline_s: float) -> list[psutil.Process]:
    """Those that are still alive at the deadline. A zombie counts as gone: only its parent can reap it."""
    until = time.monotonic() + deadline_s
    alive = [process for process in processes if _alive(process)]
    while alive and time.monotonic() < until:
        time.sleep(0.1)
        alive = [process for process in alive if _alive(process)]
    return alive


def variable(process: psutil.Process, name: str) -> str | None:
    """A variable of the environment that a process was started with; None where it is not set, or not to be seen."""
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def _carries(process: psutil.Process, root: Path) -> bool:
    return variable(process, STACK_VARIABLE) == str(root) and _alive(process)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _created(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return 0.0


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
            process.resume()  # one that is stopped could not act on it
    except psutil.Error:
        pass
