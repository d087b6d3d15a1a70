"""Writes finished groups: all that are there go into one object, one object at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from driftline.records import Group
from driftline.rollout.background import StoreThreads
from driftline.store.run_store import RunStore


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
        on_written: Callable[[Sequence[Group]], None],
    ) -> None:
        self._run_store = run_store
        self._cell = cell
        self._sequence = sequence
        self._threads = threads
        self._on_written = on_written
        self._queue: list[Group] = []
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, group: Group) -> None:
        """Queue a finished group."""
        self._queue.append(group)
        self._filled.set()
        self._empty.clear()

    async def write(self) -> None:
        """Write what is queued, for ever."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while batch := self._queue:
                self._queue = []
                await self._threads.run(self._run_store.append_groups, self._cell, self._sequence, batch)
                self._sequence += 1
                self._on_written(batch)
            self._empty.set()

    async def flush(self) -> None:
        """Wait until everything queued is written."""
        await self._empty.wait()
