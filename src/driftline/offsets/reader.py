"""A run as it stands in the store: blocking, incremental. One reader, one run, one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from driftline.errors import CorruptObject, ObjectMissing
from driftline.offsets.chain import MOST_STEPS, StepChain
from driftline.offsets.figures import StepFigures
from driftline.offsets.recent_spans import RecentSpans
from driftline.records import Head, OffsetReport, RunDescription, Span, StepRecord, Trajectory, decode
from driftline.store import keys
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from driftline.store.trajectories import decode_groups

SPANS_PERIOD_S = 4.0
"""The timeline is looked for less often than heads and engines."""
RUN_THREADS = 8


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment. `head` is None where it has not begun."""

    description: RunDescription
    head: Head | None
    steps: tuple[StepFigures, ...]
    latest: StepRecord | None
    engines: tuple[OffsetReport, ...]
    spans: tuple[Span, ...]
    newest_spans: tuple[tuple[str, str], ...]
    """(process, key of its newest object) of `spans`."""
    observed_unix: float

    @property
    def run(self) -> str:
        """The run's name."""
        return self.description.run

    @property
    def version(self) -> int | None:
        """Number of the current policy version."""
        return self.head.version.number if self.head is not None and self.head.version is not None else None


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in the list; `head` is None where it has not begun, `trouble` says why it cannot be read."""

    run: str
    created_unix: float
    head: Head | None
    trouble: str = ""


class RunReader:
    """Reads one run again and again. What never changes is fetched once."""

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        *,
        most_steps: int = MOST_STEPS,
        timeline: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin; nothing is read yet.

        Args:
            store: Where the run is.
            run: Its name.
            most_steps: So many of the last steps are kept.
            timeline: Whether to read the timeline as well.
            clock: Unix seconds.
        """
        self._run_store = RunStore(store, run)
        self._most_steps, self._timeline = most_steps, timeline
        self._clock = clock
        self._spans_due = 0.0
        self._begin()

    def _begin(self) -> None:
        store, run = self._run_store.store, self._run_store.run
        self._description: RunDescription | None = None
        self._head: tuple[Head, str] | None = None
        self._chain = StepChain(store, run, most_steps=self._most_steps)
        self._recent = RecentSpans(self._run_store)
        self._spans: tuple[Span, ...] = ()

    @property
    def progress(self) -> tuple[int, int]:
        """(records read, records wanted) of the reading under way."""
        return self._chain.read, self._chain.wanted

    def read(self) -> RunView:
        """The run as it stands.

        Raises:
            ObjectMissing: There is no such run.
            CorruptObject: Its head or a step record cannot be read, is gone, or is of a newer format.
            StoreUnavailable: The store does not answer.
        """
        head = self._read_head()
        if self._head is not None and _is_another(self._head[0], head[0] if head is not None else None):
            self._begin()
        self._head = head
        if self._description is None:
            self._description = self._run_store.describe()
        if head is not None:
            self._follow(head[0])
        now = self._clock()
        if self._timeline and now >= self._spans_due:
            self._spans = self._recent.read()
            self._spans_due = now + SPANS_PERIOD_S
        return RunView(
            description=self._description,
            head=head[0] if head else None,
            steps=self._chain.steps,
            latest=self._chain.latest,
            engines=tuple(self._run_store.offsets()),
            spans=self._spans,
            newest_spans=self._recent.newest,
            observed_unix=now,
        )

    def key_of(self, group: int) -> str | None:
        """Key of the step record that trained a group or gave it up."""
        return self._chain.key_of(group)

    def record(self, key: str) -> StepRecord:
        """A whole step record."""
        return self._chain.record(key)

    def member(self, key: str, group: int, member: int) -> Trajectory | None:
        """A member of a finished group, from its object; None where that is gone, or holds no such member."""
        try:
            groups = decode_groups(self._run_store.store.get(key).body, run=self._run_store.run, key=key)
        except ObjectMissing:
            return None
        members = [m for found in groups if found.number == group for m in found.trajectories if m.member == member]
        return members[0] if members else None

    def _follow(self, head: Head) -> None:
        try:
            self._chain.advance(head)
        except ObjectMissing as error:
            self._run_store.describe()  # Raises where the run itself is gone.
            raise CorruptObject(
                f"HEAD of run {self._run_store.run!r} reaches a step record that is gone: {error}"
            ) from None

    def _read_head(self) -> tuple[Head, str] | None:
        try:
            if self._head is not None:
                return self._run_store.head_if_changed(self._head[1]) or self._head
            return self._run_store.read_head()
        except ObjectMissing:
            self._run_store.describe()  # Raises where the run itself is gone.
            return None


def _is_another(before: Head, now: Head | None) -> bool:
    """Whether a head is of another run of the same name: epochs only grow, and each has one holder."""
    if now is None or now.epoch < before.epoch:
        return True
    return now.epoch == before.epoch and now.holder != before.holder


class RunsReader:
    """Lists the runs of a bucket, newest first. `run.json` never changes: it is fetched once."""

    def __init__(self, store: ObjectStore, most_runs: int) -> None:
        self._store = store
        self._most_runs = most_runs
        self._created: dict[str, float] = {}

    def read(self) -> tuple[RunEntry, ...]:
        """The newest runs."""
        names = self._store.folders(keys.RUNS)
        self._created = {name: self._created[name] for name in names if name in self._created}
        with ThreadPoolExecutor(RUN_THREADS, "runs") as pool:
            created = dict(zip(names, pool.map(self._when_created, names), strict=True))
            self._created = {name: unix for name, unix in created.items() if unix is not None}
            newest = sorted(self._created, key=lambda name: (-self._created[name], name))[: self._most_runs]
            return tuple(pool.map(self._entry, newest))

    def _when_created(self, run: str) -> float | None:
        if run in self._created:
            return self._created[run]
        try:
            return RunStore(self._store, run).describe().created_unix
        except (ObjectMissing, CorruptObject):
            return None

    def _entry(self, run: str) -> RunEntry:
        try:
            body = self._store.get(keys.head(run)).body
            return RunEntry(run, self._created[run], decode(Head, body, key=keys.head(run)))
        except ObjectMissing:
            return RunEntry(run, self._created[run], None)
        except CorruptObject as error:
            return RunEntry(run, self._created[run], None, str(error))
