"""Probe groups: tasks that a refresh has the current policy of a run play, to learn how often it solves them.

    runs/<run>/probes/OPEN                          the request that cells work on; empty when there is none
    runs/<run>/probes/<request>/request.json        ProbeRequest                  created once
    runs/<run>/probes/<request>/claims/<n>.json     Claim                         conditional put
    runs/<run>/probes/<request>/results/<n>.json    ProbeResult                   created once

Nothing here is trained on: probe groups have no place among the run's groups, and their trajectories are not kept.
Their tokens are the ledger's `probe`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from driftline.errors import CorruptObject, ObjectMissing, PreconditionFailed
from driftline.records import FORMAT, Claim, decode, encode
from driftline.store import keys
from driftline.store.claims import ClaimBook
from driftline.store.protocol import ObjectStore, StoredObject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Tasks to play. A request of the same id is the same request, whoever posts it."""

    id: str
    run: str
    task_set: str
    """Name of the task set that holds the candidates."""
    version: str
    task_ids: tuple[str, ...]
    """Of the version, those to play; the n-th probe group plays the n-th."""
    members: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of one probe group."""

    request: str
    number: int
    task_id: str
    attempts: int
    """Valid episodes; failures of infrastructure are none."""
    solved: int
    invalid: int
    sampled_tokens: int
    policy_version: int
    """That the first token was sampled from; -1 if none was."""
    cell: str = ""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class _Open:
    request: str
    format: int = FORMAT


class ProbeBook:
    """The probe groups of one run. Blocking and thread-safe."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self._store = store
        self._run = run
        self._etag = ""
        self._open: ProbeRequest | None = None

    def post(self, request: ProbeRequest) -> None:
        """Have the run's cells work on a request, instead of on any other."""
        assert request.run == self._run
        self._create_same(keys.probe_request(self._run, request.id), encode(request))
        self._store.put(keys.probes_open(self._run), encode(_Open(request.id)))

    def reopen(self, request: ProbeRequest) -> None:
        """Have the run's cells work on a request again, if they work on none: another's, posted since, is done."""
        named, etag = self._named()
        if not named:
            with suppress(PreconditionFailed):
                body, key = encode(_Open(request.id)), keys.probes_open(self._run)
                self._store.swap(key, body, etag) if etag else self._store.create(key, body)

    def close(self, request: ProbeRequest) -> None:
        """Have cells stop working on a request, if they do."""
        named, etag = self._named()
        if named == request.id:
            with suppress(PreconditionFailed):
                self._store.swap(keys.probes_open(self._run), encode(_Open("")), etag)

    def open_request(self) -> ProbeRequest | None:
        """The request that cells work on, None if there is none. A look costs one request to the store.

        What cannot be read is passed over, and told once.
        """
        key = keys.probes_open(self._run)
        try:
            found = self._store.get_if_changed(key, self._etag) if self._etag else self._store.get(key)
        except ObjectMissing:
            self._etag, self._open = "", None
            return None
        if found is not None:
            opened = self._read_open(found)
            self._etag, self._open = found.etag, opened
        return self._open

    def read(self, request: str) -> ProbeRequest:
        """Read a request.

        Raises:
            ObjectMissing: There is none.
        """
        key = keys.probe_request(self._run, request)
        found = decode(ProbeRequest, self._store.get(key).body, key=key)
        if found.run != self._run:
            raise CorruptObject(f"{key} belongs to run {found.run!r}, not to {self._run!r}")
        return found

    def claims(self, request: ProbeRequest) -> ClaimBook:
        """The claims of a request's groups. One that has a result is not taken over when its claim has expired."""
        return ClaimBook(
            self._store,
            self._run,
            _Finished(self._store, self._run, request.id),
            key=lambda number: keys.probe_claim(self._run, request.id, number),
        )

    def finish(self, result: ProbeResult) -> bool:
        """Write a result; returns False if there is one already, which stays."""
        try:
            self._store.create(keys.probe_result(self._run, result.request, result.number), encode(result))
        except PreconditionFailed:
            return False
        return True

    def finished(self, request: ProbeRequest) -> set[int]:
        """Numbers of the groups that have a result."""
        prefix = keys.probe_results_prefix(self._run, request.id)
        return {keys.probe_number(info.key) for info in self._store.list(prefix)}

    def results(self, request: ProbeRequest) -> list[ProbeResult]:
        """All results so far, by number. One that cannot be read is passed over: its task counts as not measured."""
        found: list[ProbeResult] = []
        for number in sorted(self.finished(request)):
            key = keys.probe_result(self._run, request.id, number)
            try:
                found.append(decode(ProbeResult, self._store.get(key).body, key=key))
            except CorruptObject as error:
                logger.error("the result of a probe group is passed over: %s", error)
        return found

    def _named(self) -> tuple[str, str]:
        """The id of the open request, and its object's entity tag; both empty where there is none."""
        key = keys.probes_open(self._run)
        try:
            found = self._store.get(key)
        except ObjectMissing:
            return "", ""
        try:
            return decode(_Open, found.body, key=key).request, found.etag
        except CorruptObject:
            return "", found.etag

    def _read_open(self, found: StoredObject) -> ProbeRequest | None:
        try:
            wanted = decode(_Open, found.body, key=found.key).request
            return self.read(wanted) if wanted else None
        except (CorruptObject, ObjectMissing) as error:
            logger.error("a request for probe groups is passed over: %s", error)
            return None

    def _create_same(self, key: str, body: bytes) -> None:
        try:
            self._store.create(key, body)
        except PreconditionFailed:
            if self._store.get(key).body != body:
                raise PreconditionFailed(f"{key} has other contents: the same request asks for other tasks") from None


@dataclass(frozen=True, slots=True)
class _Finished:
    """The groups of a request that have a result, by a look at the store."""

    store: ObjectStore
    run: str
    request: str

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        try:
            self.store.get(keys.probe_result(self.run, self.request, number))
        except ObjectMissing:
            return False
        return True


def probe_claim(number: int, cell: str, task_id: str, version: str) -> Claim:
    """A claim of a probe group, as a cell asks for it."""
    return Claim(number, cell, 0, task_id, version, 0.0)


def tokens_of(results: Sequence[ProbeResult]) -> int:
    """Tokens sampled for measuring."""
    return sum(result.sampled_tokens for result in results)
