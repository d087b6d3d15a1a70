"""Follows the finished groups of a run, however many cells write them, and counts each group once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from driftline.records import Group
from driftline.store import keys
from driftline.store.protocol import ObjectStore
from driftline.store.trajectories import decode_groups

READ_THREADS = 8


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A finished group that does not count, because another attempt at it was seen first."""

    group: int
    key: str
    sampled_tokens: int


@dataclass(slots=True)
class _Position:
    """How far one cell's objects are read: all up to `last`, and beyond a gap those in `ahead`."""

    last: str
    ahead: set[str]


class TrajectoryCursor:
    """Reads a run's finished groups incrementally. Not thread-safe.

    A poll costs one request a cell and one a new object, and now and then one to find cells; it does not grow with
    the run.
    Of several attempts at a group the first seen counts, the lowest attempt within one poll; the others go to
    `duplicates`. An object that lands after a later one of its cell is still read.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        after: Mapping[str, str],
        *,
        cells_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin behind some keys.

        Args:
            store: Where the run's objects are.
            run: Its name.
            after: Cell -> key up to which its objects are known.
            cells_s: Pause between two looks for new cells, once there is one.
            monotonic: Clock, in seconds.
        """
        self._store = store
        self._run = run
        self._prefix = keys.trajectories_prefix(run)
        self._positions = {cell: _Position(key, set()) for cell, key in after.items()}
        self._cells_s = cells_s
        self._monotonic = monotonic
        self._cells_looked: float | None = None
        self.seen: dict[int, str] = {}
        """Group -> key of the object that counts."""
        self.duplicates: list[Duplicate] = []

    @property
    def positions(self) -> dict[str, str]:
        """Cell -> key up to which all of its objects are read; what a new cursor starts from."""
        return {cell: position.last for cell, position in self._positions.items() if position.last}

    def poll(self) -> list[Group]:
        """The groups finished since the last poll, by group number.

        Raises:
            CorruptObject: An object is damaged or belongs to another run. It is tried again by the next poll.
        """
        found = {cell: self._new_keys(cell) for cell in self._cells()}
        groups = self._read([key for new in found.values() for key in new])
        for cell, new in found.items():
            self._advance(cell, new)
        return sorted(self._count(groups), key=lambda group: group.number)

    def _cells(self) -> list[str]:
        """All cells known, new ones included now and then."""
        now = self._monotonic()
        if not self._positions or self._cells_looked is None or now >= self._cells_looked + self._cells_s:
            self._cells_looked = now
            for cell in self._store.folders(self._prefix):
                self._positions.setdefault(cell, _Position("", set()))
        return sorted(self._positions)

    def _new_keys(self, cell: str) -> list[str]:
        position = self._positions[cell]
        listed = self._store.list(f"{self._prefix}{cell}/", after=position.last)
        return [info.key for info in listed if info.key not in position.ahead]

    def _read(self, new: list[str]) -> list[Group]:
        if len(new) <= 1:
            return [group for key in new for group in self._read_one(key)]
        with ThreadPoolExecutor(min(READ_THREADS, len(new)), "trajectories") as pool:
            return [group for groups in pool.map(self._read_one, new) for group in groups]

    def _read_one(self, key: str) -> list[Group]:
        return decode_groups(self._store.get(key).body, run=self._run, key=key)

    def _advance(self, cell: str, new: list[str]) -> None:
        """Move the cell's position over the objects that follow without a gap."""
        position = self._positions[cell]
        position.ahead.update(new)
        while (key := keys.trajectories(self._run, cell, self._sequence(cell, position.last) + 1)) in position.ahead:
            position.ahead.remove(key)
            position.last = key

    def _sequence(self, cell: str, key: str) -> int:
        return int(key.removeprefix(f"{self._prefix}{cell}/").partition(".")[0]) if key else -1

    def _count(self, groups: list[Group]) -> list[Group]:
        counted: list[Group] = []
        for group in sorted(groups, key=lambda g: (g.trajectories[0].attempt, g.key)):
            if group.number in self.seen:
                tokens = sum(t.sampled_tokens for t in group.trajectories)
                self.duplicates.append(Duplicate(group.number, group.key, tokens))
            else:
                self.seen[group.number] = group.key
                counted.append(group)
        return counted
