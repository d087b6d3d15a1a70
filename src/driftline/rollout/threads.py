"""Threads with event loops of their own, for environments that compute or block.

    collector's loop ──call──▶ EnvironmentThread: guard.call in its loop ──answer──▶ collector's loop
                                   ▲
    Warden (a thread) ─────────────┘ interrupts a stretch that is too long; gives the thread up if that does not help

An environment stays in the thread that it was made in, since what it holds may belong to that thread's loop. The
deadlines of its calls are kept there, by the thread's own guard. What holds the thread is interrupted with
`EnvironmentBlocked` when its deadline has passed; that ends Python code, but no call into C or the kernel. A thread
that is held `grace_s` longer is lost: the call ends as late, the other environments of the thread fail, and the
thread, if it ever comes back, ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.rollout.guard import GRACE_S, REPEAT_S, Advance, EnvironmentBlocked, EnvironmentGuard

LOG = logging.getLogger(__name__)

TICK_S = 0.05
"""How often the warden looks."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Stretch:
    """An environment holds the thread."""

    deadline_s: float
    began: float
    task: asyncio.Task[Any] | None
    interrupted: float = 0.0
    """Monotonic seconds of the last interruption; 0 before it."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call of an environment, on its way in the thread."""

    what: str
    deadline_s: float
    answer: asyncio.Future[Any]
    task: asyncio.Task[Any] | None = None


class EnvironmentThread:
    """One such thread. All but its own parts are called in the loop `home`."""

    def __init__(self, name: str, home: asyncio.AbstractEventLoop, *, grace_s: float = GRACE_S) -> None:
        self.environments = 0
        """How many live in it; kept by who places them."""
        self.lost = False
        self.name = name
        self._home = home
        self._grace_s = grace_s
        self._loop = asyncio.new_event_loop()
        self._guard = EnvironmentGuard(grace_s=grace_s, stretch=self._hold)
        self._stretch: _Stretch | None = None
        self._calls: set[_Call] = set()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is there; a lost one is, until what holds it returns."""
        return self._thread.is_alive()

    @property
    def held_s(self) -> float:
        """For how long it is held at this moment."""
        stretch = self._stretch
        return 0.0 if stretch is None else time.monotonic() - stretch.began

    async def call(self, what: str, deadline_s: float, method: Callable[[], Awaitable[T]]) -> T:
        """Await `method()` in the thread; the contract of `EnvironmentGuard.call`.

        Raises:
            EnvironmentFailed: It raised, or the thread was lost to another environment.
        """
        if self.lost:
            raise EnvironmentFailed(self._lost_to_another(what))
        call = _Call(what, deadline_s, self._home.create_future())
        self._calls.add(call)
        try:
            self._loop.call_soon_threadsafe(self._begin, call, method)
            await asyncio.wait([call.answer])
        except asyncio.CancelledError:
            await self._cancel(call)
            raise
        finally:
            self._calls.discard(call)
        return call.answer.result()

    async def close(self) -> None:
        """End the thread, if nothing holds it."""
        self._stop()
        deadline = time.monotonic() + self._grace_s
        while self.alive and time.monotonic() < deadline:  # noqa: ASYNC110 (threads offer no event to wait for)
            await asyncio.sleep(0.001)
        if self.alive:
            LOG.warning("%s is held by an environment, and ends with the process", self.name)

    def give_up(self) -> None:
        """The thread is lost: end its calls, and the thread when it comes back."""
        self.lost = True
        stretch = self._stretch
        self._stop()
        for call in list(self._calls):
            if stretch is not None and call.task is stretch.task:
                late = (
                    f"the environment's {call.what} has blocked its thread for {call.deadline_s + self._grace_s:g} s"
                )
                remedy = "raise environment.step_deadline_s, make it await, or set environment.runs_in to process"
                _settle(call.answer, None, DeadlineExceeded(f"{late}, and the thread is lost: {remedy}"))
            else:
                _settle(call.answer, None, EnvironmentFailed(self._lost_to_another(call.what)))

    def watch(self) -> bool:
        """The warden's look: interrupt what holds the thread too long. Returns whether it must be given up."""
        stretch, now = self._stretch, time.monotonic()
        if stretch is None or self.lost or now - stretch.began <= stretch.deadline_s:
            return False
        if now - stretch.began > stretch.deadline_s + self._grace_s:
            return True
        if now - stretch.interrupted > REPEAT_S and self._stretch is stretch:
            stretch.interrupted = now
            _raise_in(self._thread, EnvironmentBlocked)
        return False

    def _lost_to_another(self, what: str) -> str:
        return (
            f"{what}: the thread was lost to another environment, which blocked it: set environment.runs_in to "
            "process, or make that one await"
        )

    async def _cancel(self, call: _Call) -> None:
        """Cancel a call, and wait until it has cleaned up; one that does not listen is cancelled twice."""
        for _ in range(2):
            if self.lost or call.answer.done():
                return
            self._loop.call_soon_threadsafe(_cancel_task, call)
            try:
                await asyncio.wait([call.answer], timeout=self._grace_s)
            except asyncio.CancelledError:
                self._loop.call_soon_threadsafe(_cancel_task, call)
                raise

    def _stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)

    # ---- in the thread

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        running = True
        while running:
            try:
                self._loop.run_forever()
                running = False
            except EnvironmentBlocked:  # meant for a stretch that ended at this very moment
                continue
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        with contextlib.suppress(Exception, EnvironmentBlocked):
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=self._grace_s))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _begin(self, call: _Call, method: Callable[[], Awaitable[Any]]) -> None:
        call.task = self._loop.create_task(self._guard.call(call.what, call.deadline_s, method), name=call.what)
        call.task.add_done_callback(lambda task: self._ended(call, task))

    def _ended(self, call: _Call, task: asyncio.Task[Any]) -> None:
        result, error = None, None
        if task.cancelled():
            error = asyncio.CancelledError()
        elif (error := task.exception()) is None:
            result = task.result()
        with contextlib.suppress(RuntimeError):  # the collector's loop is closed: nobody waits
            self._home.call_soon_threadsafe(_settle, call.answer, result, error)

    def _hold(self, deadline_s: float, advance: Advance) -> Any:
        stretch = self._stretch = _Stretch(deadline_s, time.monotonic(), asyncio.current_task(self._loop))
        try:
            result = advance()
        finally:
            self._stretch = None
            if stretch.interrupted:
                _take_back(self._thread)
        if stretch.interrupted:
            raise EnvironmentBlocked
        return result


class Warden:
    """The thread that watches the others, and tells of those that are lost, in the loop `home`."""

    def __init__(
        self,
        home: asyncio.AbstractEventLoop,
        threads: Callable[[], Iterable[EnvironmentThread]],
        on_lost: Callable[[EnvironmentThread], None],
    ) -> None:
        self._home = home
        self._threads = threads
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._told: set[EnvironmentThread] = set()
        threading.Thread(target=self._watch, name="environment-warden", daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(TICK_S):
            for thread in tuple(self._threads()):
                if thread.watch() and thread not in self._told:
                    self._told.add(thread)
                    with contextlib.suppress(RuntimeError):  # the collector's loop is closed
                        self._home.call_soon_threadsafe(self._on_lost, thread)


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if isinstance(error, asyncio.CancelledError):
        answer.cancel()
    elif error is not None:
        answer.set_exception(error)
        answer.exception()  # who waited may have been cancelled
    else:
        answer.set_result(result)


def _cancel_task(call: _Call) -> None:
    if call.task is not None:
        call.task.cancel()


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Have another thread raise an error, as soon as it executes Python code."""
    if thread.ident is not None:
        set_error = cast(Any, ctypes.pythonapi.PyThreadState_SetAsyncExc)
        set_error(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


def _take_back(thread: threading.Thread) -> None:
    """Take back an error that the thread has not raised yet."""
    if thread.ident is not None:
        set_error = cast(Any, ctypes.pythonapi.PyThreadState_SetAsyncExc)
        set_error(ctypes.c_ulong(thread.ident), None)
