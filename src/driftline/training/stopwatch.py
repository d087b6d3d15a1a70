"""Adds up the seconds of some kind of work that is done in several places."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Stopwatch:
    """Runs while any of its `running` blocks does; `take` ends an account. For one thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin at zero, by a clock in seconds."""
        self._monotonic = monotonic
        self._blocks = 0
        self._began = 0.0
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Count everything done meanwhile, once where such blocks are nested."""
        if not self._blocks:
            self._began = self._monotonic()
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                self._seconds += self._monotonic() - self._began

    def take(self) -> float:
        """Seconds since the last call; not of a block that still runs."""
        taken, self._seconds = self._seconds, 0.0
        return taken
