"""Follows the finished groups of a run, however many cells write them, and counts each group once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from driftline.errors import CorruptObject, ObjectMissing
from driftline.records import CellAccount, Group
from driftline.store import keys
from driftline.store.protocol import ObjectStore
from driftline.store.trajectories import decode_object

logger = logging.getLogger(__name__)

READ_THREADS = 8


@dataclass(frozen=True, slots=True)
class Delivery:
    """One object of finished groups, as it was read; without groups where it cannot be read."""

    cell: str
    key: str
    groups: tuple[Group, ...]
    account: CellAccount | None
    """The cell's account at that moment, None where it sent none."""
    damage: str = ""
    """Why it cannot be read."""


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
    the run. Of several attempts at a group the first seen counts, the lowest attempt within one poll; the others go
    to `duplicates`. An object that lands after a later one of its cell is still read. One that cannot be read, twice,
    is set aside: it goes to `damaged`, and none of its groups count as finished.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        after: Mapping[str, str],
        *,
        cells_s: float = 0.0,
        skip: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin behind some keys.

        Args:
            store: Where the run's objects are.
            run: Its name.
            after: Cell -> key up to which its objects are known.
            cells_s: Pause between two looks for new cells, once there is one.
            skip: Keys of objects that were set aside before.
            monotonic: Clock, in seconds.
        """
        self._store = store
        self._run = run
        self._prefix = keys.trajectories_prefix(run)
        self._positions = {cell: _Position(key, set()) for cell, key in after.items()}
        self._cells_s = cells_s
        self._skip = frozenset(skip)
        self._monotonic = monotonic
        self._cells_looked: float | None = None
        self.seen: dict[int, str] = {}
        """Group -> key of the object that counts."""
        self.duplicates: list[Duplicate] = []
        self._foreign: set[str] = set()
        """Keys of what no cell has written."""
        self.damaged: dict[str, str] = {}
        """Key of an object that was set aside -> why."""

    @property
    def positions(self) -> dict[str, str]:
        """Cell -> key up to which all of its objects are read; what a new cursor starts from."""
        return {cell: position.last for cell, position in self._positions.items() if position.last}

    def poll(self) -> list[Group]:
        """The groups finished since the last poll, by group number."""
        return self.look()[0]

    def look(self) -> tuple[list[Group], list[Delivery]]:
        """What `poll` returns, and the objects read for it, each cell's in order."""
        found = {cell: self._new_keys(cell) for cell in self._cells()}
        deliveries = self._read([(cell, key) for cell, new in found.items() for key in new])
        for cell, new in found.items():
            self._advance(cell, new)
        self.damaged |= {delivery.key: delivery.damage for delivery in deliveries if delivery.damage}
        groups = [group for delivery in deliveries for group in delivery.groups]
        return sorted(self._count(groups), key=lambda group: group.number), deliveries

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
        found = [info.key for info in listed if info.key not in position.ahead]
        self._say_what_is_foreign({key for key in found if not keys.is_trajectories(key)})
        return [key for key in found if key not in self._foreign]

    def _say_what_is_foreign(self, found: set[str]) -> None:
        for key in sorted(found - self._foreign):
            logger.warning("%s is no object of finished groups, and passed over: keep it elsewhere", key)
        self._foreign |= found

    def _read(self, new: Sequence[tuple[str, str]]) -> list[Delivery]:
        if len(new) <= 1:
            return [self._read_one(*one) for one in new]
        with ThreadPoolExecutor(min(READ_THREADS, len(new)), "trajectories") as pool:
            return [*pool.map(self._read_one, *zip(*new, strict=True))]

    def _read_one(self, cell: str, key: str) -> Delivery:
        if key in self._skip:
            return Delivery(cell, key, (), None, "it was set aside before")
        try:
            groups, account = self._decoded(key)
        except (CorruptObject, ObjectMissing) as error:
            logger.warning("%s; it is read once more", error)
            try:
                groups, account = self._decoded(key)
            except (CorruptObject, ObjectMissing) as again:
                logger.error("%s is set aside: %s", key, again)
                return Delivery(cell, key, (), None, str(again))
        return Delivery(cell, key, tuple(groups), account)

    def _decoded(self, key: str) -> tuple[list[Group], CellAccount | None]:
        return decode_object(self._store.get(key).body, run=self._run, key=key)

    def _advance(self, cell: str, new: list[str]) -> None:
        """Move the cell's position over the objects that follow without a gap."""
        position = self._positions[cell]
        position.ahead.update(new)
        while (key := self._key_after(cell, position.last)) in position.ahead:
            position.ahead.remove(key)
            position.last = key

    def _key_after(self, cell: str, last: str) -> str:
        return keys.trajectories(self._run, cell, keys.sequence(last) + 1 if last else 0)

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
