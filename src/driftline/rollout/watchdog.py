"""Ends a cell in which nothing progresses although there is work, with the stack of every task and thread in its log.

Everything in a cell has a deadline of its own; this is for what nobody thought of: a lost wake-up, two that wait for
each other, a call that blocks the event loop. So it looks from a thread of its own, and tells a loop that is blocked
from one that has nothing to run by a heartbeat of the loop.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from driftline.errors import NoProgress

LOG = logging.getLogger(__name__)

CHECKS = 20
"""Looks at the progress within its deadline."""
DEAF_S = 5.0
"""A loop that has not acted for so long when it was told to end is blocked."""
STACK_LINES = 30


class Watchdog:
    """Watches one cell."""

    def __init__(
        self,
        cell: str,
        deadline_s: float,
        *,
        works: Callable[[], bool],
        progress: Callable[[], Hashable],
        on_deaf: Callable[[NoProgress], None] | None = None,
        deaf_s: float = DEAF_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            cell: Its name.
            deadline_s: Longest time without progress.
            works: Whether there is work. Called in the watchdog's thread, as are the next two.
            progress: Something that changes with every progress.
            on_deaf: Called where the loop is blocked, so that nothing in it can be ended.
            deaf_s: How long the loop may take to act.
            monotonic: Clock, in seconds.
        """
        self._cell, self._deadline_s, self._deaf_s = cell, deadline_s, deaf_s
        self._works, self._progress = works, progress
        self._on_deaf = on_deaf
        self._monotonic = monotonic
        self._beat = monotonic()
        self._ended = threading.Event()
        self._error: NoProgress | None = None

    def beat(self) -> None:
        """The event loop runs."""
        self._beat = self._monotonic()

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`, and cancel it when nothing progresses.

        Raises:
            NoProgress: It was; and whatever `work` raises.
        """
        loop = asyncio.get_running_loop()
        working = asyncio.create_task(work, name="cell")
        self.beat()
        thread = threading.Thread(target=self._watch, args=(loop, working), name="watchdog", daemon=True)
        thread.start()
        try:
            await working
        except asyncio.CancelledError:
            if self._error is not None and working.cancelled():
                raise self._error from None
            raise
        finally:
            self._ended.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, working: asyncio.Task[None]) -> None:
        seen, since = self._progress(), self._monotonic()
        while not self._ended.wait(self._deadline_s / CHECKS):
            now, progress = self._monotonic(), self._progress()
            blocked = now - self._beat > self._deadline_s
            if progress != seen or not (self._works() or blocked):
                seen, since = progress, now
            if blocked or now - since > self._deadline_s:
                self._end(loop, working, blocked)
                return

    def _end(self, loop: asyncio.AbstractEventLoop, working: asyncio.Task[None], blocked: bool) -> None:
        held = "its event loop is blocked" if blocked else "no episode, claim, token or write"
        error = self._error = NoProgress(
            f"cell {self._cell} has work, and made no progress for {self._deadline_s:g} s ({held}): the log has the "
            "stack of every task and thread; raise limits.watchdog_s if that is its pace"
        )
        LOG.error("%s\n%s", error, stacks(loop))
        acted = threading.Event()

        def cancel() -> None:
            acted.set()
            working.cancel()

        loop.call_soon_threadsafe(cancel)
        if not acted.wait(self._deaf_s) and self._on_deaf is not None and not self._ended.is_set():
            self._on_deaf(error)


def stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Where every thread of the process and every task of a loop stands; may be called in any thread."""
    parts = [f"{len(threads := _threads())} threads", *threads]
    try:
        tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    except RuntimeError as error:  # they change all the time
        return "\n\n".join([*parts, f"tasks cannot be listed: {error}"])
    return "\n\n".join([*parts, f"{len(tasks)} tasks", *map(_stack_of, tasks)])


def _threads() -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame)[-STACK_LINES:]).rstrip()
        for ident, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage] (the documented way)
    ]


def _stack_of(task: asyncio.Task[Any]) -> str:
    written = io.StringIO()
    task.print_stack(limit=STACK_LINES, file=written)
    return f"{task.get_name()}: {written.getvalue().rstrip()}"
