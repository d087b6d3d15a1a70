"""The committed steps of one run, followed back from HEAD; what is known already is never fetched again.

Step records are immutable and each names the one before it, so a new HEAD costs one read for each new step. A run
that is first seen late is read ahead by its listing, in parallel. Only the last `most_steps` are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from driftline.errors import CorruptObject, ObjectMissing
from driftline.offsets.figures import StepFigures, figures
from driftline.records import Head, StepRecord
from driftline.store import keys
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore

MOST_STEPS = 10_000
READ_AHEAD_STEPS = 16
"""So many new records are followed one by one; more are fetched together."""
READ_THREADS = 4


class StepChain:
    """Figures of the committed steps, oldest first. Not thread-safe; blocking."""

    def __init__(self, store: ObjectStore, run: str, *, most_steps: int = MOST_STEPS) -> None:
        self._store = store
        self._run = run
        self._most_steps = most_steps
        self._known: dict[str, StepFigures] = {}
        """Key -> figures, oldest first."""
        self._step_of: dict[int, str] = {}
        """Group -> key of the record that trained it or gave it up."""
        self.latest: StepRecord | None = None
        self.steps: tuple[StepFigures, ...] = ()
        self.read, self.wanted = 0, 0
        """Progress of the reading under way, in records."""

    def advance(self, head: Head) -> None:
        """Follow the chain from a head.

        Raises:
            CorruptObject: A record on it cannot be read.
            ObjectMissing: One is gone.
        """
        last = next(reversed(self._known), None)
        if head.record == last and head.record is not None:
            return
        behind = self.steps[-1].step if self.steps else 0
        self.read, self.wanted = 0, min(max(0, head.step - behind), self._most_steps)
        latest = self.record(head.record) if head.record is not None else None
        new = dict(islice(self._new(head, latest), self._most_steps))
        self._append(new, head.record)
        self.latest = latest

    def record(self, key: str) -> StepRecord:
        """A whole record. A `RunStore` keeps what it has read, which a reader of long runs must not."""
        return RunStore(self._store, self._run).read_step(key)

    def key_of(self, group: int) -> str | None:
        """Key of the record that trained a group or gave it up, None where no kept step did."""
        return self._step_of.get(group)

    def _new(self, head: Head, latest: StepRecord | None) -> Iterator[tuple[str, StepFigures]]:
        """Keys and figures of the steps that are not known, newest first."""
        ahead = self._read_ahead() if self.wanted > READ_AHEAD_STEPS else {}
        key, step = head.record, head.step + 1
        while key is not None and key not in self._known:
            if key == head.record and latest is not None:
                found = figures(latest)
            else:
                found = ahead.pop(key, None) or figures(self.record(key))
            if found.step >= step:
                raise CorruptObject(f"{key} is not older than the record that names it as previous")
            self.read = max(self.read, self.wanted - len(ahead))
            step = found.step
            yield key, found
            key = found.previous

    def _read_ahead(self) -> dict[str, StepFigures]:
        """The newest records by their listing. What cannot be read is left to the walk, which says so."""
        listed = (info.key for info in self._store.list(keys.steps_prefix(self._run)))
        wanted = deque((key for key in listed if key not in self._known), self._most_steps)
        found: dict[str, StepFigures] = {}

        def read(key: str) -> None:
            with suppress(CorruptObject, ObjectMissing):
                found[key] = figures(self.record(key))
            self.read += 1

        with ThreadPoolExecutor(READ_THREADS, "steps") as pool:
            deque(pool.map(read, wanted), maxlen=0)
        return found

    def _append(self, new: dict[str, StepFigures], newest: str | None) -> None:
        """Take up new steps (newest first); what the chain no longer runs through goes."""
        joint = next(reversed(new.values())).previous if new else newest
        kept = list(self._known) if joint in self._known else []
        while kept and kept[-1] != joint:
            kept.pop()
        known = {key: self._known[key] for key in kept} | dict(reversed(new.items()))
        grown = len(kept) == len(self._known) and len(known) <= self._most_steps
        self._known = dict(islice(known.items(), max(0, len(known) - self._most_steps), None))
        changed = new if grown else self._known
        groups = {group: key for key, found in changed.items() for group in found.groups}
        self._step_of = self._step_of | groups if grown else groups
        self.steps = tuple(self._known.values())
