"""Claims of groups: leases by the store's clock, taken by conditional writes.

A claim is created once (attempt 1). When it has expired, whoever swaps it first has it, with the next attempt.
Expiry is judged by the `Date` of the store's answers, never by this machine's clock; that header has whole
seconds, so a lease may seem up to a second longer to others, never shorter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial

from driftline.errors import CorruptObject, ObjectMissing, PreconditionFailed
from driftline.records import Claim, decode, encode
from driftline.store import keys
from driftline.store.protocol import ObjectStore, StoredObject, WriteResult

logger = logging.getLogger(__name__)


class StoreClock:
    """The store's clock, estimated between its answers."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offsets: deque[float] = deque(maxlen=32)

    def observe(self, store_unix: float) -> None:
        """Note the clock of an answer that has just arrived."""
        self._offsets.append(store_unix - self._monotonic())

    def now(self) -> float | None:
        """The store's time in Unix seconds; None before the first answer.

        Latency and rounding only ever make an observation too small: the largest is the best.
        """
        offsets = tuple(self._offsets)
        return max(offsets) + self._monotonic() if offsets else None


class ClaimBook:
    """The claims of one run, as one process takes and holds them. Thread-safe."""

    def __init__(
        self, store: ObjectStore, run: str, finished: Container[int], *, key: Callable[[int], str] | None = None
    ) -> None:
        """Begin without any claim.

        Args:
            store: Where the claims are.
            run: The run.
            finished: The groups that need not be played any more. Asked only before a group is taken over.
            key: Group number -> key of its claim; by default that of the run's groups.
        """
        self._store = store
        self._finished = finished
        self._key_of: Callable[[int], str] = key or partial(keys.claim, run)
        self._clock = StoreClock()
        self._etags: dict[tuple[int, int, str], str] = {}
        self._lock = threading.Lock()

    def claim(self, wanted: Claim, lease_s: float) -> Claim | None:
        """Take a group that nobody holds; None where somebody does, or where it is finished."""
        first = self._leased(replace(wanted, attempt=1), lease_s)
        try:
            return self._written(first, lambda body: self._store.create(self._key(first), body), lease_s)
        except PreconditionFailed:
            return self._take_over(wanted, lease_s)

    def _take_over(self, wanted: Claim, lease_s: float) -> Claim | None:
        """Take a claim that has expired, unless its group is finished."""
        try:
            found = self._store.get(self._key(wanted))
        except ObjectMissing:
            return None
        self._clock.observe(found.store_unix)
        held = self._read(found, wanted)
        if found.store_unix <= held.expires_unix or wanted.group in self._finished:
            return None
        mine = self._leased(replace(held, cell=wanted.cell, attempt=held.attempt + 1), lease_s)
        try:
            return self._written(mine, lambda body: self._store.swap(found.key, body, found.etag), lease_s)
        except PreconditionFailed:
            return None

    def renew(self, claim: Claim, lease_s: float) -> Claim:
        """Hold a claim for another `lease_s` seconds."""
        with self._lock:
            etag = self._etags.get(_identity(claim))
        lost = f"the claim of group {claim.group} (attempt {claim.attempt}) is lost: it expired and was taken"
        if etag is None:
            raise PreconditionFailed(lost)
        renewed = self._leased(claim, lease_s)
        try:
            return self._written(renewed, lambda body: self._store.swap(self._key(claim), body, etag), lease_s)
        except PreconditionFailed:
            self._forget(claim)
            raise PreconditionFailed(lost) from None

    def release(self, claim: Claim) -> None:
        """Let a claim expire now."""
        with self._lock:
            etag = self._etags.pop(_identity(claim), None)
        if etag is not None:
            try:
                self._store.swap(self._key(claim), encode(replace(claim, expires_unix=0.0)), etag)
            except PreconditionFailed:
                return

    def _written(self, claim: Claim, write: Callable[[bytes], WriteResult], lease_s: float) -> Claim:
        """Write a claim and remember its tag. A lease reckoned with a stale clock is written once more."""
        result = write(encode(claim))
        self._clock.observe(result.store_unix)
        with self._lock:
            self._etags[_identity(claim)] = result.etag
        if claim.expires_unix - result.store_unix < lease_s / 2:
            corrected = self._leased(claim, lease_s)
            result = self._store.swap(self._key(claim), encode(corrected), result.etag)
            with self._lock:
                self._etags[_identity(claim)] = result.etag
            return corrected
        return claim

    def _leased(self, claim: Claim, lease_s: float) -> Claim:
        return replace(claim, expires_unix=(self._clock.now() or 0.0) + lease_s)

    def _read(self, found: StoredObject, wanted: Claim) -> Claim:
        """The claim as it stands. One that cannot be read holds nothing, and what it said is lost.

        How many attempts there were is not known then, and attempts must differ: the next one is numbered by the
        store's clock, which is above any count.
        """
        try:
            return decode(Claim, found.body, key=found.key)
        except CorruptObject as error:
            logger.error("the claim of group %d is replaced: %s", wanted.group, error)
            return replace(wanted, attempt=int(found.store_unix), expires_unix=0.0)

    def _forget(self, claim: Claim) -> None:
        with self._lock:
            self._etags.pop(_identity(claim), None)

    def _key(self, claim: Claim) -> str:
        return self._key_of(claim.group)


def _identity(claim: Claim) -> tuple[int, int, str]:
    return claim.group, claim.attempt, claim.cell
