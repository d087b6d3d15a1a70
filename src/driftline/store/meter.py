"""How long a process stands waiting for the store: the wall clock in which at least one call is under way."""

from __future__ import annotations

import builtins
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from driftline.store.protocol import ObjectInfo, ObjectStore, StoredObject, WriteResult


class MeteredStore:
    """An `ObjectStore` over another, which adds up the time of its calls. Thread-safe.

    Calls that overlap count once. Listings are read to their end at once.
    """

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._under_way = 0
        self._since = 0.0
        self._seconds = 0.0
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds in which at least one call was under way, since the start."""
        with self._lock:
            return self._seconds + (self._monotonic() - self._since if self._under_way else 0.0)

    @property
    def requests(self) -> Counter[str]:
        """Requests sent by the store beneath."""
        return self._store.requests

    def get(self, key: str) -> StoredObject:
        """Read a whole object."""
        with self._timed():
            return self._store.get(key)

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """Read an object unless its entity tag is still `etag`."""
        with self._timed():
            return self._store.get_if_changed(key, etag)

    def put(self, key: str, body: bytes) -> WriteResult:
        """Write an object, whatever was there."""
        with self._timed():
            return self._store.put(key, body)

    def create(self, key: str, body: bytes) -> WriteResult:
        """Write an object that must not exist yet."""
        with self._timed():
            return self._store.create(key, body)

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        """Replace an object that still has `etag`."""
        with self._timed():
            return self._store.swap(key, body, etag)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `after`, in the order of their keys."""
        with self._timed():
            found = [*self._store.list(prefix, after=after)]
        return iter(found)

    def folders(self, prefix: str) -> builtins.list[str]:
        """Names of the folders directly under `prefix`, sorted."""
        with self._timed():
            return self._store.folders(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        with self._timed():
            self._store.delete(keys)

    @contextmanager
    def _timed(self) -> Generator[None, None, None]:
        with self._lock:
            if self._under_way == 0:
                self._since = self._monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if self._under_way == 0:
                    self._seconds += self._monotonic() - self._since
