"""An object store in this process's memory, with the semantics of the real one and a clock of the caller's."""

from __future__ import annotations

import builtins
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from driftline.errors import ObjectMissing, PreconditionFailed
from driftline.store.protocol import ObjectInfo, StoredObject, WriteResult


@dataclass(frozen=True, slots=True)
class _Entry:
    body: bytes
    etag: str
    modified_unix: float


class MemoryStore:
    """`ObjectStore` for tests. As in S3, the entity tag is a digest of the body. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def requests(self) -> Counter[str]:
        """Calls, by operation."""
        with self._lock:
            return self._requests.copy()

    def get(self, key: str) -> StoredObject:
        """Read a whole object."""
        with self._lock:
            self._requests["get"] += 1
            entry = self._entry(key)
            return StoredObject(key, entry.body, entry.etag, self._clock())

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """Read an object unless its entity tag is still `etag`."""
        found = self.get(key)
        return None if found.etag == etag else found

    def put(self, key: str, body: bytes) -> WriteResult:
        """Write an object, whatever was there."""
        with self._lock:
            return self._write(key, body)

    def create(self, key: str, body: bytes) -> WriteResult:
        """Write an object that must not exist yet."""
        with self._lock:
            if key in self._entries:
                self._requests["put"] += 1
                raise PreconditionFailed(f"{key} exists already")
            return self._write(key, body)

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        """Replace an object that still has `etag`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.etag != etag:
                self._requests["put"] += 1
                raise PreconditionFailed(f"{key} has changed, or is gone")
            return self._write(key, body)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `after`, in the order of their keys."""
        with self._lock:
            self._requests["list"] += 1
            found = [(k, e) for k, e in self._entries.items() if k.startswith(prefix) and k > after]
        for key, entry in sorted(found):
            yield ObjectInfo(key, len(entry.body), entry.modified_unix)

    def folders(self, prefix: str) -> builtins.list[str]:
        """Names between `prefix` and the next slash, sorted."""
        with self._lock:
            self._requests["list"] += 1
            rests = [k[len(prefix) :] for k in self._entries if k.startswith(prefix)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        with self._lock:
            self._requests["delete"] += 1
            for key in keys:
                self._entries.pop(key, None)

    def _entry(self, key: str) -> _Entry:
        try:
            return self._entries[key]
        except KeyError:
            raise ObjectMissing(f"there is no object {key}") from None

    def _write(self, key: str, body: bytes) -> WriteResult:
        self._requests["put"] += 1
        entry = _Entry(bytes(body), f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"', self._clock())
        self._entries[key] = entry
        return WriteResult(entry.etag, entry.modified_unix)
