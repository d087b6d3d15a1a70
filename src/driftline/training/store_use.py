"""What a step asks of the store: seconds on its critical path, and requests."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from driftline.records import StepRecord, TokenLedger
from driftline.store.meter import MeteredStore
from driftline.store.protocol import ObjectStore
from driftline.tracking import metrics


class StoreUse:
    """Adds up the store time of a step and counts its requests; `take` ends a step's account."""

    def __init__(
        self, store: ObjectStore, records: Sequence[StepRecord], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin behind the committed records."""
        self.store = MeteredStore(store, monotonic)
        """For the calls that are measured one by one, among other work: those of publishing."""
        self._monotonic = monotonic
        self._publish_s = 0.0
        self._commit_s = 0.0
        self._requests = self.store.requests.total()
        last = records[-1].ledger if records else None
        self._cell_requests, self._claim_wait_s = _of_cells(last) if last else (0, {})

    @contextmanager
    def publishing(self) -> Generator[None, None, None]:
        """Count the calls through `store` made meanwhile."""
        before = self.store.seconds
        yield
        self._publish_s += self.store.seconds - before

    @contextmanager
    def committing(self) -> Generator[None, None, None]:
        """Count everything done meanwhile."""
        before = self._monotonic()
        yield
        self._commit_s += self._monotonic() - before

    def take(self, read_s: float, ledger: TokenLedger) -> dict[str, float]:
        """The metrics since the last call, by the names of the table.

        Args:
            read_s: Seconds of the look for finished groups that completed the batch.
            ledger: The step's ledger, with the cells' accounts.
        """
        publish_s, self._publish_s = self._publish_s, 0.0
        commit_s, self._commit_s = self._commit_s, 0.0
        requests, self._requests = self._requests, self.store.requests.total()
        cell_requests, claim_wait_s = self._cell_requests, self._claim_wait_s
        self._cell_requests, self._claim_wait_s = _of_cells(ledger)
        claim_s = max((s - claim_wait_s.get(cell, 0.0) for cell, s in self._claim_wait_s.items()), default=0.0)
        return {
            metrics.STORE_READ_SECONDS: read_s,
            metrics.STORE_PUBLISH_SECONDS: publish_s,
            metrics.STORE_COMMIT_SECONDS: commit_s,
            metrics.STORE_CLAIM_SECONDS: claim_s,
            metrics.STORE_SECONDS: read_s + publish_s + commit_s + claim_s,
            metrics.STORE_REQUESTS: float(self._requests - requests),
            metrics.STORE_CELL_REQUESTS: float(self._cell_requests - cell_requests),
        }


def _of_cells(ledger: TokenLedger) -> tuple[int, dict[str, float]]:
    """Requests of all cells so far, and the seconds that each has waited for claims."""
    waited: dict[str, float] = defaultdict(float)
    for known in ledger.incarnations:
        waited[known.account.cell] += known.account.claim_wait_s
    return sum(known.account.store_requests for known in ledger.incarnations), waited
