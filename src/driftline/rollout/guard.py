"""Keeps one environment from holding up all the others in its event loop.

Quick environments are awaited in the collector's event loop, where a turn costs microseconds and not a thread hop;
the others in the loops of threads (`threads`). Either is only safe with an answer to those that misbehave:

| It | What ends it |
|---|---|
| waits for ever (`await` of something that never comes) | the deadline cancels it |
| ignores its cancellation, or cleans up for ever | the second cancellation, `GRACE_S` later, abandons it |
| blocks the loop (a blocking call, an endless loop) | it is interrupted with `EnvironmentBlocked` |
| has deadlines of its own (`asyncio.timeout`), which cancel the same task | nothing: they are taken back |
| raises `CancelledError` though nobody has cancelled it, `SystemExit`, or a panic of an extension | it has failed |

In the main thread an interval timer interrupts, in others the thread says how (`stretch`). A guard that can do
neither says so in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

from driftline.errors import DeadlineExceeded, EnvironmentFailed

LOG = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long an environment may clean up after its deadline."""

REPEAT_S = 1.0
"""How often one that goes on blocking is interrupted again."""

HELD_S = 0.01
"""How long an environment may hold its loop before the others get the time back."""

T = TypeVar("T")

Advance = Callable[[], Any]
Stretch = Callable[[float, Advance], Any]
"""Returns what it calls, which it interrupts with `EnvironmentBlocked` after so many seconds."""


class EnvironmentBlocked(BaseException):
    """Raised inside an environment that holds the event loop; not an `Exception`, so that it is not caught there."""


class EnvironmentGuard:
    """Awaits environments under a deadline that also holds for those that block or do not listen."""

    def __init__(self, *, grace_s: float = GRACE_S, stretch: Stretch | None = None) -> None:
        self.grace_s = grace_s
        self._stretch = stretch or _with_timer
        self._armed = stretch is not None
        self._deadlines: set[asyncio.Timeout] = set()

    @contextlib.contextmanager
    def installed(self) -> Generator[None, None, None]:
        """Be able to interrupt environments that block the loop, while the context lasts."""
        if threading.current_thread() is not threading.main_thread():
            LOG.warning("not in the main thread: an environment that blocks the event loop cannot be interrupted")
            yield
            return
        _handler.acquire()
        self._armed = True
        try:
            yield
        finally:
            self._armed = False
            _handler.release()

    async def call(self, what: str, deadline_s: float, method: Callable[[], Awaitable[T]]) -> T:
        """Await `method()`.

        Args:
            what: Names the call in messages, e.g. "step".
            deadline_s: Seconds, for the whole call and for each stretch in which it holds the loop.
            method: Called inside the guard, too.

        Raises:
            DeadlineExceeded: It did not return in time.
            EnvironmentFailed: It raised.
        """
        own = asyncio.timeout(deadline_s)
        watched = _Watched(_coroutine(method), partial(self._run, deadline_s, own))
        try:
            if watched.begin():
                return watched.result
            return await self._wait(watched, own)
        except EnvironmentBlocked:
            raise DeadlineExceeded(
                f"{_late(what, deadline_s)}, and make it await: it blocked the event loop"
            ) from None
        except _Late:
            raise DeadlineExceeded(_late(what, deadline_s)) from None
        except Exception as error:
            raise EnvironmentFailed(f"{what} raised {type(error).__name__}: {error}") from error

    async def _wait(self, watched: _Watched[T], deadline: asyncio.Timeout) -> T:
        """Await the rest of a call under its deadline, after which nothing that it returns or raises counts."""
        last = asyncio.timeout(None)

        def begin_or_end_grace(cancelled: bool) -> None:
            if not last.expired():
                last.reschedule(asyncio.get_running_loop().time() + self.grace_s if cancelled else None)

        # Two deadlines that pass while the loop is held would cancel once: the second runs from the first's effect.
        watched.on_cancelled = begin_or_end_grace
        self._deadlines.add(deadline)
        try:
            async with last, deadline:
                result = await watched
        except Exception:
            if deadline.expired():
                raise _Late from None
            raise
        finally:
            self._deadlines.discard(deadline)
        if deadline.expired():
            raise _Late
        return result

    def _run(self, deadline_s: float, own: asyncio.Timeout, advance: Advance) -> Any:
        """One stretch of an environment. The time that it holds the loop is given back to the others."""
        if not self._armed:
            return advance()
        before = time.monotonic()
        try:
            return self._stretch(deadline_s, advance)
        finally:
            held = time.monotonic() - before
            if held > HELD_S:
                self._extend_others(held, own)

    def _extend_others(self, seconds: float, own: asyncio.Timeout) -> None:
        for deadline in self._deadlines:
            when = deadline.when()
            if when is not None and deadline is not own and not deadline.expired():
                deadline.reschedule(when + seconds)


class _Late(BaseException):
    """The deadline has passed."""


class _Watched(Generic[T]):
    """Awaits a coroutine, with a timer on each stretch in which it runs, and lets go of it at the second cancel.

    The first stretch (`begin`) is often all there is: a call that waits for nothing needs no deadline but the timer.
    """

    result: T

    def __init__(self, coroutine: Coroutine[Any, Any, T], run: Callable[[Advance], Any]) -> None:
        self._coroutine = coroutine
        self._run = run
        self.on_cancelled: Callable[[bool], None] = lambda cancelled: None
        """Called when the coroutine is told that it is cancelled, and when it turns out that it was not."""
        self._waits_for: Any = None
        self._cancelled = False
        """Whether it is cancelled, and has been told."""
        self._cancels_before = _cancels()

    def begin(self) -> bool:
        """Run it until it waits for something; returns whether it ended instead, with `result`."""
        return self._advance(partial(self._coroutine.send, None))

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            try:
                advance = partial(self._coroutine.send, (yield self._waits_for))
            except BaseException as error:
                # What it waits for may have been cancelled, and not who waits.
                cancels = isinstance(error, asyncio.CancelledError) and _cancels() > self._cancels_before
                if isinstance(error, GeneratorExit) or (cancels and self._cancelled):
                    self._abandon()
                    raise
                if cancels:
                    self._cancelled = True
                    self.on_cancelled(True)
                advance = partial(self._coroutine.throw, error)
            if self._advance(advance):
                return self.result

    def _advance(self, advance: Advance) -> bool:
        try:
            self._waits_for = self._run(advance)
        except StopIteration as stop:
            self.result = stop.value
            return True
        except asyncio.CancelledError:
            if self._cancelled:
                raise
            # Passed on, it would end whoever plays the episode as if they had been cancelled, without a word.
            raise EnvironmentFailed("CancelledError, and nobody had cancelled it") from None
        if self._cancelled and _cancels() <= self._cancels_before:
            # It was a deadline within the environment, which cancels the task and takes that back.
            self._cancelled = False
            self.on_cancelled(False)
        return False

    def _abandon(self) -> None:
        try:
            self._run(self._coroutine.close)
        except BaseException as error:
            LOG.warning("an environment did not end when told to, and is abandoned: %r", error)


def _cancels() -> int:
    """How often the task that runs has been cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _with_timer(seconds: float, advance: Advance) -> Any:
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_S)
    try:
        return advance()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


async def _coroutine(method: Callable[[], Awaitable[T]]) -> T:
    try:
        return await method()
    except (Exception, asyncio.CancelledError, EnvironmentBlocked, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the policy: whatever an environment raises is its failure
        raise EnvironmentFailed(repr(error)) from error


def _late(what: str, deadline_s: float) -> str:
    return f"the environment's {what} took longer than {deadline_s:g} s: raise environment.step_deadline_s"


class _Handler:
    """The process's handler of SIGALRM, installed as long as any guard needs it."""

    def __init__(self) -> None:
        self._users = 0
        self._before: Any = None

    def acquire(self) -> None:
        if self._users == 0:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._before)

    @staticmethod
    def _interrupt(number: int, frame: FrameType | None) -> None:
        raise EnvironmentBlocked


_handler = _Handler()
