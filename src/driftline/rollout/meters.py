"""When a cell was busy, what it waited for when it was not, and how late its event loop is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

Interval = tuple[float, float]

GAP_S = 0.005
"""Gaps shorter than this, such as between an answer and the next request, do not end a busy stretch."""

HEARTBEAT_S = 0.02
LAGS_KEPT = 4096
"""Lags between two reports that are kept: more than a minute of them."""


@dataclass(frozen=True, slots=True)
class LagFigures:
    """How late the event loop ran what was due, in seconds."""

    p50_s: float
    p99_s: float
    max_s: float


class LagMeter:
    """Asks to be woken every `HEARTBEAT_S`, and notes how much later it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lags: list[float] = []
        self.newest: LagFigures | None = None
        """What `take` last returned."""

    @contextlib.asynccontextmanager
    async def measured(self, beat: Callable[[], None] = lambda: None) -> AsyncGenerator[None, None]:
        """Measure while the context lasts; `beat` is called at each heartbeat."""
        loop, handle = asyncio.get_running_loop(), None

        def wake(due: float) -> None:
            nonlocal handle
            now = self._clock()
            self.note(now - due)
            beat()
            handle = loop.call_later(HEARTBEAT_S, wake, now + HEARTBEAT_S)

        handle = loop.call_later(HEARTBEAT_S, wake, self._clock() + HEARTBEAT_S)
        try:
            yield
        finally:
            handle.cancel()

    def note(self, lag_s: float) -> None:
        """Take note of one lag."""
        if len(self._lags) < LAGS_KEPT:
            self._lags.append(max(0.0, lag_s))

    def take(self) -> LagFigures | None:
        """The lags since the last call; None if there are none."""
        lags, self._lags = sorted(self._lags), []
        if lags:
            self.newest = LagFigures(_quantile(lags, 0.5), _quantile(lags, 0.99), lags[-1])
        return self.newest if lags else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class BusyMeter:
    """The stretches of wall clock in which at least one request executed or tool ran."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.ended = 0
        """Requests and tool calls that have come to an end."""
        self._clock = clock
        self._running = 0
        self._since = 0.0
        self._intervals: list[Interval] = []

    @property
    def running_now(self) -> int:
        """How many requests and tool calls run at this moment."""
        return self._running

    def begin(self) -> float:
        """Count something more as running; returns the time."""
        now = self._clock()
        if self._running == 0:
            if self._intervals and now - self._intervals[-1][1] < GAP_S:
                self._since, _ = self._intervals.pop()
            else:
                self._since = now
        self._running += 1
        return now

    def end(self) -> float:
        """Count something less as running; returns the time."""
        now = self._clock()
        self._running -= 1
        self.ended += 1
        if self._running == 0:
            self._intervals.append((self._since, now))
        return now

    def take(self) -> list[Interval]:
        """The stretches since the last call, disjoint and in order; one that goes on is cut here."""
        now = self._clock()
        taken, self._intervals = self._intervals, []
        if self._running and now > self._since:
            taken.append((self._since, now))
            self._since = now
        return taken


class WaitingMeter:
    """What a cell without any episode in flight waits for."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """Cause -> seconds in all, those of a stretch that goes on excepted."""
        self._clock = clock
        self._cause: str | None = None
        self._since = 0.0
        self._stretches: list[tuple[str, Interval]] = []

    def set(self, cause: str | None) -> None:
        """Say what it waits for from now on; None if it works."""
        if cause == self._cause:
            return
        self._cut()
        self._cause = cause

    def take(self) -> list[tuple[str, Interval]]:
        """(cause, interval) since the last call, in order; a stretch that goes on is cut here."""
        self._cut()
        taken, self._stretches = self._stretches, []
        return taken

    def _cut(self) -> None:
        now = self._clock()
        if self._cause is not None and now > self._since:
            self._stretches.append((self._cause, (self._since, now)))
            self.seconds[self._cause] += now - self._since
        self._since = now
