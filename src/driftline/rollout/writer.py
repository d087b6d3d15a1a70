"""Writes finished groups: all that are there go into one object, one object at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from driftline.records import CellAccount, Group
from driftline.rollout.background import StoreThreads
from driftline.store.run_store import RunStore

LINGER_S = 0.1
"""How long a finished group that nobody needs yet waits for others to share its object."""


class GroupWriter:
    """The queue of finished groups and the one writer of a cell's sequence.

    The queue is bounded by admission: no more groups can be finished than may have been started.
    """

    def __init__(
        self,
        run_store: RunStore,
        cell: str,
        sequence: int,
        threads: StoreThreads,
        *,
        is_urgent: Callable[[int], bool],
        account: Callable[[Sequence[Group]], CellAccount],
        on_written: Callable[[str, Sequence[Group]], None],
    ) -> None:
        """Begin at a sequence number.

        Args:
            run_store: Where to.
            cell: The cell whose sequence it is.
            sequence: Number of the next object.
            threads: For calls of the store.
            is_urgent: Asked with the number of groups in the queue: whether to write them at once.
            account: Called with groups before they are written: the cell's account, which goes with them.
            on_written: Called with the key of an object that is in the store, and its groups.
        """
        self._run_store = run_store
        self._cell = cell
        self._sequence = sequence
        self._threads = threads
        self._is_urgent = is_urgent
        self._account = account
        self._on_written = on_written
        self._queue: list[Group] = []
        self._flushing = False
        self._filled = asyncio.Event()
        self._urgent = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, group: Group) -> None:
        """Queue a finished group."""
        self._queue.append(group)
        self._filled.set()
        self._empty.clear()
        self.nudge()

    def nudge(self) -> None:
        """Ask again whether what is queued is urgent."""
        if self._flushing or self._is_urgent(len(self._queue)):
            self._urgent.set()

    async def write(self) -> None:
        """Write what is queued, for ever."""
        while True:
            await self._filled.wait()
            await self._linger()
            self._filled.clear()
            batch, self._queue = self._queue, []
            account = self._account(batch)
            key = await self._threads.run(self._run_store.append_groups, self._cell, self._sequence, batch, account)
            self._sequence += 1
            self._on_written(key, batch)
            if not self._queue:
                self._empty.set()

    async def flush(self) -> None:
        """Wait until everything queued is written; from now on nothing lingers."""
        self._flushing = True
        self.nudge()
        await self._empty.wait()

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_S):
                await self._urgent.wait()
        except TimeoutError:
            pass
        self._urgent.clear()
