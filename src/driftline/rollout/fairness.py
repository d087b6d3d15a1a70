"""What keeps the event loop on time with thousands of episodes in it: bursts in slices, and a small heap to search.

An engine step that ends a thousand turns wakes a thousand episodes at once. Each takes a fraction of a millisecond;
one after the other they would hold everything else that is due for as long as all of them take. `Slices` lets a few
go on in each round of the loop. And the garbage collector, which stops everything, need not look through what was
there before the first episode: an engine and a tensor library are a million objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import Generator

SLICE = 8
"""Episodes that go on in one round of the loop: some 2 ms of processor time."""


class Slices:
    """A gate that lets `most` through in each round of the event loop, the others in the order of their coming."""

    def __init__(self, most: int = SLICE) -> None:
        """Begin open."""
        self._most = most
        self._passed = 0
        self._counting = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait until it is one's turn, which it is at once unless many come together."""
        loop = asyncio.get_running_loop()
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next_round, loop)
        if self._passed < self._most:
            self._passed += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next ones through, and look again in the round after theirs."""
        self._passed = 0
        while self._waiting and self._passed < self._most:
            turn = self._waiting.popleft()
            if not turn.done():  # by its cancellation
                turn.set_result(None)
                self._passed += 1
        self._counting = self._passed > 0
        if self._counting:
            loop.call_soon(self._next_round, loop)


@contextlib.contextmanager
def settled_heap() -> Generator[None, None, None]:
    """While the context lasts, the garbage collector looks only at what was made in it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
