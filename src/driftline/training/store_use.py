"""What a step asks of the store: seconds on its critical path, and requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from driftline.store.meter import MeteredStore
from driftline.store.protocol import ObjectStore
from driftline.tracking import metrics


class StoreUse:
    """Adds up the store time of a step and counts its requests; `take` ends a step's account."""

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.store = MeteredStore(store, monotonic)
        """For the calls that are measured one by one, among other work: those of publishing."""
        self._monotonic = monotonic
        self._publish_s = 0.0
        self._commit_s = 0.0
        self._requests = self.store.requests.total()

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

    def take(self, read_s: float) -> dict[str, float]:
        """The metrics since the last call, by the names of the table.

        Args:
            read_s: Seconds of the look for finished groups that completed the batch.
        """
        publish_s, self._publish_s = self._publish_s, 0.0
        commit_s, self._commit_s = self._commit_s, 0.0
        before, self._requests = self._requests, self.store.requests.total()
        return {
            metrics.STORE_READ_SECONDS: read_s,
            metrics.STORE_PUBLISH_SECONDS: publish_s,
            metrics.STORE_COMMIT_SECONDS: commit_s,
            metrics.STORE_SECONDS: read_s + publish_s + commit_s,
            metrics.STORE_REQUESTS: float(self._requests - before),
        }
