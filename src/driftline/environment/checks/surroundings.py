"""Checks of what an environment does beside its episode: to random numbers, and to the process after a cancel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from driftline.environment.checks.findings import Case, ensure, first_difference, short
from driftline.environment.checks.playing import MAX_TURNS, Said, actions_for, begin, in_a_loop, play, take
from driftline.process.groups import descendants, holders

LOOP_TURNS = (0, 1, 3)
"""After so many turns of the event loop a call is cancelled,"""
CANCEL_SECONDS = (0.005, 0.05)
"""and after so many seconds."""
GRACE_S = 3.0
"""For what a closed environment has started to be gone."""
POLL_S = 0.02
MARK = "DRIFTLINE_ENVIRONMENT_CHECK"


def random_state(case: Case) -> None:
    """Episodes neither read nor change the global random numbers."""
    with _random_states_kept():
        first = _episodes_with_global_seed(case, 1)
        second = _episodes_with_global_seed(case, 2)
    for task, one, other in zip(case.tasks, first, second, strict=True):
        difference = first_difference(one, other)
        ensure(not difference, f"task {task.id} depends on the global random state: it differs at {difference}")


def _episodes_with_global_seed(case: Case, seed: int) -> list[list[Said]]:
    random.seed(seed)
    np.random.seed(seed)
    before = _random_states()
    tasks = case.family.generate(case.seed, len(case.tasks))
    ensure(tuple(tasks) == case.tasks, "generate reads the global random state: it gave other tasks")
    said = in_a_loop(_play_all(case))
    for name, was, now in zip(("random", "numpy.random"), before, _random_states(), strict=True):
        ensure(was == now, f"generating or playing tasks draws from, or seeds, the global state of {name}")
    return said


async def _play_all(case: Case) -> list[list[Said]]:
    return [await play(case, task, actions_for(case, task)) for task in case.tasks]


def _random_states() -> tuple[object, object]:
    name, keys, position, *rest = np.random.get_state(legacy=True)
    return random.getstate(), (name, bytes(np.asarray(keys).data), position, *rest)


@contextlib.contextmanager
def _random_states_kept() -> Generator[None, None, None]:
    kept, numpy_kept = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(numpy_kept)


@dataclass(slots=True)
class _Left:
    """What was there after the environments had been closed, in words."""

    tasks: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])


def cancellation(case: Case) -> None:
    """A cancelled call ends, and after `close` no task, thread, process or file is left."""
    with _watched_directory() as (directory, mark):
        threads = set(threading.enumerate())
        here = _entries(Path.cwd())
        left = _Left()
        try:
            in_a_loop(_cancel_everywhere(case, left))
            ensure(not left.late, f"a call did not end within {GRACE_S:g} s of its cancel: {short(left.late)}")
            ensure(not left.tasks, f"tasks are left after close: {short(left.tasks)}")
            _gone("threads", lambda: [one.name for one in _foreign(set(threading.enumerate()) - threads)])
            _gone("processes", lambda: [_command(pid) for pid in _processes(mark)])
            _gone("files", lambda: sorted(_entries(directory) | _entries(Path.cwd()) - here))
        finally:
            _kill(_processes(mark))


async def _cancel_everywhere(case: Case, left: _Left) -> None:
    for task in case.tasks[:2]:
        action = actions_for(case, task)[0]
        for pause in (*LOOP_TURNS, *CANCEL_SECONDS):
            environment = case.family.make(max_turns=MAX_TURNS)
            await _cancelled("reset", begin(case, environment, task), pause, left)
            await _close_twice(case, environment)
            environment = case.family.make(max_turns=MAX_TURNS)
            await begin(case, environment, task)
            await _cancelled("step", take(case, environment, action), pause, left)
            await _close_twice(case, environment)
            if left.late:
                return
    environment = case.family.make(max_turns=MAX_TURNS)
    await _close_twice(case, environment)
    await _note_tasks(left)


async def _cancelled(what: str, call: Coroutine[Any, Any, Any], pause: float, left: _Left) -> None:
    """Start a call, cancel it, and wait until it has ended."""
    task = asyncio.get_running_loop().create_task(call, name=what)
    if isinstance(pause, int):
        for _ in range(pause):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(pause)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=GRACE_S)
    if not done:
        left.late.append(what)
    elif not task.cancelled():
        task.exception()


async def _close_twice(case: Case, environment: Any) -> None:
    for _ in range(2):
        async with asyncio.timeout(case.deadline_s):
            await environment.close()


async def _note_tasks(left: _Left) -> None:
    deadline = time.monotonic() + GRACE_S
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        if time.monotonic() > deadline:
            left.tasks.extend(sorted(task.get_name() for task in others))
            return
        await asyncio.sleep(POLL_S)


def _gone(what: str, look: Callable[[], list[str]]) -> None:
    """Wait until there is nothing; whatever stays is told."""
    deadline = time.monotonic() + GRACE_S
    while found := look():
        ensure(time.monotonic() < deadline, f"{what} are left after close: {short(found)}")
        time.sleep(POLL_S)


@contextlib.contextmanager
def _watched_directory() -> Generator[tuple[Path, str], None, None]:
    """A directory of their own for temporary files, and a mark by which started processes are known."""
    directory = Path(tempfile.mkdtemp(prefix="driftline-check-"))
    mark = f"{MARK}={uuid.uuid4().hex}"
    changed = {"TMPDIR": str(directory), MARK: mark.partition("=")[2]}
    before = {name: os.environ.get(name) for name in changed}
    kept = tempfile.tempdir
    os.environ.update(changed)
    tempfile.tempdir = str(directory)
    try:
        yield directory, mark
    finally:
        tempfile.tempdir = kept
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(directory, ignore_errors=True)


def _processes(mark: str) -> list[int]:
    """Processes started under the mark; their parent may have ended."""
    return sorted({pid for pid in holders(mark) if pid != os.getpid()})


def _foreign(threads: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Threads other than those that wait for work of an event loop that is closed."""
    return [one for one in threads if one.is_alive() and not one.name.startswith("driftline-check")]


def _entries(directory: Path) -> set[str]:
    return {str(one) for one in directory.glob("*") if one.name != "__pycache__" and not one.name.startswith(".")}


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"{text or '?'} ({pid})"
    return str(pid)


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        for one in (pid, *descendants(pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
