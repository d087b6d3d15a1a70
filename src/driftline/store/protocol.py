"""What Driftline needs of an object store, and no more.

The contract suite `tests/contract/test_store.py` runs over S3 (SeaweedFS) and the in-memory store.
All methods block; asynchronous callers run them in a thread.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it was read. `store_unix` is the store's clock at the answer, in seconds."""

    key: str
    body: bytes
    etag: str
    store_unix: float


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it."""

    key: str
    bytes: int
    modified_unix: float


@dataclass(frozen=True, slots=True)
class WriteResult:
    """An accepted write: the new entity tag, and the store's clock."""

    etag: str
    store_unix: float


class ObjectStore(Protocol):
    """Keys and bytes in one bucket. Every method raises `StoreUnavailable` after its bounded retries."""

    @property
    def requests(self) -> Counter[str]:
        """Requests sent by this process, by operation, retries and further pages of listings included."""
        ...

    def get(self, key: str) -> StoredObject:
        """Read a whole object.

        Raises:
            ObjectMissing: There is none.
        """
        ...

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """Read an object unless its entity tag is still `etag`.

        Raises:
            ObjectMissing: There is none.
        """
        ...

    def put(self, key: str, body: bytes) -> WriteResult:
        """Write an object, whatever was there. Atomic: readers see the old or the new, never a part."""
        ...

    def create(self, key: str, body: bytes) -> WriteResult:
        """Write an object that must not exist yet (`If-None-Match: *`). Of racing calls, one wins.

        Raises:
            PreconditionFailed: It exists. (Where the answer to an earlier try was lost, a retry that finds its
                own bytes there has succeeded; racing writers must therefore write different bytes.)
        """
        ...

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        """Replace an object that still has `etag` (`If-Match`). Of racing calls, one wins.

        Raises:
            PreconditionFailed: It has changed, or is gone. (Own bytes on a retry as in `create`.)
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `after`, in the order of their keys.

        Order and `after` may be relied on within one folder; SeaweedFS sorts folder by folder, Amazon byte by byte.
        """
        ...

    def folders(self, prefix: str) -> builtins.list[str]:
        """Names of the folders directly under `prefix` (which ends with a slash), sorted."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        ...
