"""One run's objects: what every process reads and writes, with the guarantees of each write.

| object | written by | how | guarantee |
|---|---|---|---|
| `run.json` | the parent, once | create | never changes |
| `HEAD` | the trainer that holds the epoch (`take_epoch`) | swap | the one commit point |
| manifest, step record, spans | trainer (spans: anyone) | create | immutable; writing the same again is no error |
| claim | cells | create, swap | one holder at a time, by the store's clock |
| finished groups | their cell | create | immutable; a group counts once (`TrajectoryCursor`) |
| offset, evaluation | cell, evaluator | put | the newest stands |
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from driftline.errors import CorruptObject, ObjectMissing, PreconditionFailed
from driftline.records import (
    FORMAT,
    CellAccount,
    Claim,
    EvaluationResult,
    Group,
    Head,
    OffsetReport,
    PolicyVersion,
    RunDescription,
    RunState,
    Span,
    StepRecord,
    WeightsManifest,
    decode,
    encode,
)
from driftline.store import keys
from driftline.store.claims import ClaimBook
from driftline.store.cursor import TrajectoryCursor
from driftline.store.finished import FinishedGroups
from driftline.store.lease import TrainerLease
from driftline.store.protocol import ObjectStore
from driftline.store.trajectories import encode_groups

logger = logging.getLogger(__name__)

EPOCH_TRIES = 16
READ_AHEAD_STEPS = 16
"""So many step records are followed one by one; more are fetched together."""
READ_THREADS = 8
RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class _SpanFile:
    run: str
    spans: tuple[Span, ...]
    format: int = FORMAT


def list_runs(store: ObjectStore) -> list[str]:
    """Names of all runs in the bucket, oldest first; those whose `run.json` is missing or cannot be read left out."""
    found: list[tuple[float, str]] = []
    for run in store.folders(keys.RUNS):
        try:
            found.append((RunStore(store, run).describe().created_unix, run))
        except ObjectMissing:
            logger.debug("%s has no run.json", run)
        except CorruptObject as error:
            logger.warning("run %s is left out: %s", run, error)
    return [run for _, run in sorted(found)]


class RunStore:
    """The objects of one run. Blocking and thread-safe; raises `StoreUnavailable` as the store does."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self.store = store
        self.run = run
        self._steps: dict[str, StepRecord] = {}
        self._claims = ClaimBook(store, run, FinishedGroups(self))

    def create(self, description: RunDescription) -> None:
        """Write `run.json`.

        Raises:
            PreconditionFailed: A run of this name exists, with another description.
        """
        self._check_run(description.run, "the description")
        try:
            self._create_same(keys.description(self.run), encode(description))
        except PreconditionFailed:
            raise PreconditionFailed(f"run {self.run!r} exists already: choose another name, or resume it") from None

    def describe(self) -> RunDescription:
        """Read `run.json`.

        Raises:
            ObjectMissing: There is no such run.
        """
        try:
            return self._read(RunDescription, keys.description(self.run))
        except ObjectMissing:
            raise ObjectMissing(f"there is no run {self.run!r} in the store: is DRIFTLINE_BUCKET right?") from None

    def create_head(self, head: Head) -> str:
        """Write the first head; returns its entity tag.

        Raises:
            PreconditionFailed: There is one.
        """
        return self.store.create(keys.head(self.run), encode(head)).etag

    def read_head(self) -> tuple[Head, str]:
        """Read the head and its entity tag.

        Raises:
            ObjectMissing: The run has not begun.
        """
        found = self.store.get(keys.head(self.run))
        return decode(Head, found.body, key=found.key), found.etag

    def head_if_changed(self, etag: str) -> tuple[Head, str] | None:
        """Read the head unless its entity tag is still `etag`; what a follower polls."""
        found = self.store.get_if_changed(keys.head(self.run), etag)
        return None if found is None else (decode(Head, found.body, key=found.key), found.etag)

    def swap_head(self, head: Head, etag: str) -> str:
        """Replace the head that has `etag`; returns the new tag. Trainers use a lease's `commit` instead.

        Raises:
            PreconditionFailed: It has changed.
        """
        return self.store.swap(keys.head(self.run), encode(head), etag).etag

    def take_epoch(self) -> TrainerLease:
        """Become the one trainer of the run: raise the epoch, so that an older trainer's next commit fails.

        Raises:
            ObjectMissing: The run has no head.
            PreconditionFailed: Others kept taking the role at the same time.
        """
        for _ in range(EPOCH_TRIES):
            found, etag = self.read_head()
            head = replace(found, epoch=found.epoch + 1, holder=uuid.uuid4().hex)
            try:
                return TrainerLease(self, head, self.swap_head(head, etag))
            except PreconditionFailed:
                continue
        raise PreconditionFailed(f"the head of run {self.run!r} keeps changing: several trainers are started for it")

    def end(self, state: RunState, reason: str = "") -> Head:
        """Take the role of the trainer for good and say how the run ended. What is final already stays."""
        head, _ = self.read_head()
        if head.state == "running":
            lease = self.take_epoch()
            head = lease.head
            if head.state == "running":
                head = replace(head, state=state, reason=reason)
                lease.commit(head)
        return head

    def write_manifest(self, manifest: WeightsManifest) -> str:
        """Write a policy version's manifest, after all of its files; returns its key."""
        self._check_run(manifest.run, "the manifest")
        return self._create_same(keys.policy_manifest(self.run, manifest.version), encode(manifest))

    def read_manifest(self, version: PolicyVersion) -> WeightsManifest:
        """Read a policy version's manifest.

        Raises:
            ObjectMissing: It has not been published.
            CorruptObject: It cannot be read, or describes another version.
        """
        key = keys.policy_manifest(self.run, version)
        manifest = self._read(WeightsManifest, key)
        self._check_run(manifest.run, key)
        if manifest.version != version:
            raise CorruptObject(f"{key} describes version {manifest.version}")
        return manifest

    def write_step(self, record: StepRecord) -> str:
        """Write a step record; it counts only once HEAD, or a later record, names it. Returns its key."""
        self._check_run(record.run, "the step record")
        return self._create_same(keys.step(self.run, record.step, record.epoch), encode(record))

    def read_step(self, key: str) -> StepRecord:
        """Read a step record. Records never change, so each is fetched once.

        Raises:
            ObjectMissing: There is none.
            CorruptObject: It cannot be read, or is another run's.
        """
        record = self._steps.get(key)
        if record is None:
            record = self._read(StepRecord, key)
            self._check_run(record.run, key)
            self._steps[key] = record
        return record

    def steps(self) -> list[StepRecord]:
        """All committed step records, oldest first, followed back from HEAD."""
        head, _ = self.read_head()
        if head.step > len(self._steps) + READ_AHEAD_STEPS:
            self._read_ahead()
        return [*self._back_from(head)][::-1]

    def last_steps(self, count: int) -> list[StepRecord]:
        """The newest committed step records, at most `count`, oldest first. Earlier ones are not read."""
        head, _ = self.read_head()
        return [*islice(self._back_from(head), count)][::-1]

    def _back_from(self, head: Head) -> Iterator[StepRecord]:
        """Step records, newest first."""
        key, below = head.record, math.inf
        while key is not None:
            record = self.read_step(key)
            if record.step >= below:
                raise CorruptObject(f"{key} is not older than the record that names it as previous")
            yield record
            key, below = record.previous, record.step

    def _read_ahead(self) -> None:
        """Fetch the step records at once that would be followed one by one. What cannot be read is left to that."""
        listed = [info.key for info in self.store.list(keys.steps_prefix(self.run))]

        def read(key: str) -> None:
            with suppress(CorruptObject, ObjectMissing):
                self.read_step(key)

        with ThreadPoolExecutor(READ_THREADS, "steps") as pool:
            deque(pool.map(read, [key for key in listed if key not in self._steps]), maxlen=0)

    def claim(self, group: int, cell: str, task_id: str, task_set: str, lease_s: float) -> Claim | None:
        """Claim a group for `lease_s` seconds of the store's clock.

        A claim that has expired passes to the caller, with the next attempt and with the task and task-set
        version of the first claim: use those of the claim returned, not those asked for.

        Returns:
            The claim, or None where somebody else holds it or the group is finished.
        """
        return self._claims.claim(Claim(group, cell, 0, task_id, task_set, 0.0), lease_s)

    def renew(self, claim: Claim, lease_s: float) -> Claim:
        """Hold a claim for another `lease_s` seconds from now.

        Raises:
            PreconditionFailed: It was lost: it had expired, and another cell has taken it.
        """
        return self._claims.renew(claim, lease_s)

    def release(self, claim: Claim) -> None:
        """Let others have an unfinished group at once. Harmless when the claim was lost."""
        self._claims.release(claim)

    def append_groups(
        self, cell: str, sequence: int, groups: Sequence[Group], account: CellAccount | None = None
    ) -> str:
        """Write a cell's next object of finished groups; returns its key.

        Args:
            cell: The cell, the only writer of its sequence.
            sequence: 0, 1, 2, ... (`next_sequence` after a restart).
            groups: Finished groups, each with all of its trajectories.
            account: The cell's account at this moment, these groups delivered.

        Raises:
            PreconditionFailed: There is another object: a second process uses the cell's name.
        """
        key = keys.trajectories(self.run, cell, sequence)
        return self._create_same(key, encode_groups(self.run, groups, account))

    def next_sequence(self, cell: str) -> int:
        """Sequence number of the next object that a (restarted) cell writes."""
        prefix = f"{keys.trajectories_prefix(self.run)}{cell}/"
        last = -1
        for info in self.store.list(prefix):
            if keys.is_trajectories(info.key):
                last = keys.sequence(info.key)
        return last + 1

    def trajectory_cursor(
        self, after: Mapping[str, str] | None = None, *, cells_s: float = 0.0, skip: Collection[str] = ()
    ) -> TrajectoryCursor:
        """A reader of finished groups that starts behind the given keys (cell -> key).

        Args:
            after: Cell -> key.
            cells_s: Pause between two looks for cells that have not written before.
            skip: Objects that were set aside before.
        """
        return TrajectoryCursor(self.store, self.run, after or {}, cells_s=cells_s, skip=skip)

    def new_groups(self, after: Mapping[str, str] | None = None) -> list[Group]:
        """All groups finished behind the given keys; to follow a run, keep a `trajectory_cursor`."""
        return self.trajectory_cursor(after).poll()

    def write_offset(self, report: OffsetReport) -> None:
        """Say what a cell's engine is generating with."""
        self._check_run(report.run, "the offset report")
        self.store.put(keys.offset(self.run, report.cell), encode(report))

    def offset(self, cell: str) -> OffsetReport | None:
        """The newest report of a cell, None where there is none that can be read."""
        try:
            report = self._read(OffsetReport, keys.offset(self.run, cell))
            self._check_run(report.run, keys.offset(self.run, cell))
        except ObjectMissing:
            return None
        except CorruptObject as error:
            logger.error("an offset report is passed over: %s", error)
            return None
        return report

    def offsets(self) -> list[OffsetReport]:
        """The newest report of every cell, by name. Those that cannot be read are passed over."""
        prefix = keys.offsets_prefix(self.run)
        cells = [info.key.removeprefix(prefix).removesuffix(".json") for info in self.store.list(prefix)]
        return [report for cell in cells if (report := self.offset(cell)) is not None]

    def append_spans(self, process: str, sequence: int, spans: Sequence[Span]) -> str:
        """Write a process's next object of timeline spans; `process` is unique to one start of it."""
        body = encode(_SpanFile(self.run, tuple(spans)))
        return self._create_same(keys.timeline(self.run, process, sequence), body)

    def spans(self) -> list[Span]:
        """All timeline spans, by start. Objects that cannot be read are passed over: only a picture needs them."""
        spans: list[Span] = []
        for info in self.store.list(keys.timeline_prefix(self.run)):
            try:
                spans += self.read_spans(info.key)
            except CorruptObject as error:
                logger.error("a part of the timeline is passed over: %s", error)
        return sorted(spans, key=lambda span: span.start_unix)

    def read_spans(self, key: str) -> tuple[Span, ...]:
        """One object of timeline spans.

        Raises:
            CorruptObject: It cannot be read, or is another run's.
        """
        found = self._read(_SpanFile, key)
        self._check_run(found.run, key)
        return found.spans

    def write_evaluation(self, result: EvaluationResult) -> None:
        """Write the evaluation of a policy version; repeating it replaces it."""
        self.store.put(keys.evaluation(self.run, result.version), encode(result))

    def evaluations(self) -> list[EvaluationResult]:
        """All evaluations, by policy version."""
        return self._read_all(EvaluationResult, keys.evaluations_prefix(self.run))

    def _read(self, record_type: type[RecordT], key: str) -> RecordT:
        return decode(record_type, self.store.get(key).body, key=key)

    def _read_all(self, record_type: type[RecordT], prefix: str) -> list[RecordT]:
        return [self._read(record_type, info.key) for info in self.store.list(prefix)]

    def _create_same(self, key: str, body: bytes) -> str:
        """Create an immutable object; that the very same is there already is success."""
        try:
            self.store.create(key, body)
        except PreconditionFailed:
            if self.store.get(key).body != body:
                raise PreconditionFailed(f"{key} has other contents: another process writes it as well") from None
        return key

    def _check_run(self, run: str, what: str) -> None:
        if run != self.run:
            raise CorruptObject(f"{what} belongs to run {run!r}, not to {self.run!r}")
