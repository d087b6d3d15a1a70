# pyright: basic
"""The object store over S3 (boto3): conditional writes, bounded retries, errors that say the remedy.

botocore's own retries are switched off. This module retries by itself, so that it knows when a conditional
write may have landed although its answer was lost: only then does finding one's own bytes count as success.
"""

from __future__ import annotations

import builtins
import logging
import os
import random
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from driftline.errors import ConfigurationError, ObjectMissing, PreconditionFailed, StoreError
from driftline.params import Settings
from driftline.store import failures, keys
from driftline.store.protocol import ObjectInfo, ObjectStore, StoredObject, WriteResult

logger = logging.getLogger(__name__)

PATIENCE_S = 180.0
"""How long an operation is retried before `StoreUnavailable`: through an outage of a minute, and then some."""
CONNECTIONS = 64
DELETE_BATCH = 1000

T = TypeVar("T")
_stores: weakref.WeakSet[S3Store] = weakref.WeakSet()


def open_store(settings: Settings, *, patience_s: float = PATIENCE_S) -> S3Store:
    """The store that the settings name. Touches nothing yet.

    Args:
        settings: Endpoint, region and bucket; credentials come through boto3's own chain.
        patience_s: Seconds for which a failing operation is retried. Short for checks at start.
    """
    return S3Store(settings.bucket, endpoint=settings.s3_endpoint, region=settings.s3_region, patience_s=patience_s)


def has_credentials() -> bool:
    """Whether boto3's chain has a key pair. May ask the metadata service of a cloud's machine: a second or two."""
    try:
        return boto3.session.Session().get_credentials() is not None
    except BotoCoreError:
        return True  # A profile that is not there, for example: the first use of the store says so.


class S3Store:
    """`ObjectStore` over one S3 bucket. Thread-safe, and usable after a fork."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None = None,
        region: str = "us-east-1",
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bucket = bucket
        self.endpoint = endpoint
        self._requests: Counter[str] = Counter()
        self._region = region
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._client: Any = None
        _stores.add(self)

    @property
    def requests(self) -> Counter[str]:
        """Requests sent, by boto3's name of the operation, retries included."""
        with self._lock:
            return self._requests.copy()

    def get(self, key: str) -> StoredObject:
        """Read a whole object."""
        found = self._get(key)
        assert found is not None, "an unconditional read cannot be unchanged"
        return found

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """Read an object unless its entity tag is still `etag`."""
        return self._get(key, IfNoneMatch=etag)

    def _get(self, key: str, **conditions: str) -> StoredObject | None:
        def read(_attempt: int) -> StoredObject | None:
            try:
                answer = self._call("get_object", Key=key, **conditions)
            except ClientError as error:
                if failures.status(error) == 304:
                    return None
                if failures.is_missing(error):
                    raise ObjectMissing(f"there is no object {key} in bucket {self.bucket!r}") from None
                raise
            return StoredObject(key, answer["Body"].read(), answer["ETag"], _store_unix(answer))

        return self._retried(read, f"read {key}")

    def put(self, key: str, body: bytes) -> WriteResult:
        """Write an object, whatever was there."""
        return self._retried(lambda _attempt: self._write(key, body), f"write {key}")

    def create(self, key: str, body: bytes) -> WriteResult:
        """Write an object that must not exist yet."""
        return self._write_if(key, body, f"{key} exists already", IfNoneMatch="*")

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        """Replace an object that still has `etag`."""
        return self._write_if(key, body, f"{key} has changed, or is gone", IfMatch=etag)

    def _write(self, key: str, body: bytes, **conditions: str) -> WriteResult:
        answer = self._call("put_object", Key=key, Body=body, **conditions)
        return WriteResult(answer["ETag"], _store_unix(answer))

    def _write_if(self, key: str, body: bytes, lost: str, **conditions: str) -> WriteResult:
        def write(attempt: int) -> WriteResult:
            try:
                return self._write(key, body, **conditions)
            except ClientError as error:
                if not (
                    failures.is_lost_condition(error) or ("IfMatch" in conditions and failures.is_missing(error))
                ):
                    raise
            own = self._own_bytes(key, body) if attempt else None
            if own is None:
                raise PreconditionFailed(lost)
            return own

        return self._retried(write, f"write {key}")

    def _own_bytes(self, key: str, body: bytes) -> WriteResult | None:
        """The write whose answer was lost, if it had landed."""
        try:
            found = self.get(key)
        except ObjectMissing:
            return None
        return WriteResult(found.etag, found.store_unix) if found.body == body else None

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `after`, in the order of their keys."""
        for page in self._pages(Prefix=prefix, **({"StartAfter": after} if after else {})):
            for item in page.get("Contents", ()):
                yield ObjectInfo(item["Key"], item["Size"], item["LastModified"].timestamp())

    def folders(self, prefix: str) -> builtins.list[str]:
        """Names of the folders directly under `prefix`, sorted."""
        pages = self._pages(Prefix=prefix, Delimiter="/")
        return sorted(item["Prefix"][len(prefix) : -1] for page in pages for item in page.get("CommonPrefixes", ()))

    def _pages(self, **arguments: str) -> Iterator[dict[str, Any]]:
        what = f"list {arguments['Prefix']}"
        while True:
            page = self._retried(lambda _attempt: self._call("list_objects_v2", **arguments), what)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        for start in range(0, len(keys), DELETE_BATCH):
            batch = [{"Key": key} for key in keys[start : start + DELETE_BATCH]]
            answer = self._retried(
                lambda _attempt, batch=batch: self._call("delete_objects", Delete={"Objects": batch, "Quiet": True}),
                f"delete {len(batch)} objects",
            )
            if errors := answer.get("Errors"):
                raise StoreError(f"could not delete {errors[0].get('Key')}: {errors[0].get('Message')}")

    def create_bucket(self) -> None:
        """Make the bucket, if it is not there yet."""
        where = (
            {} if self._region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
        )

        def make(_attempt: int) -> None:
            try:
                self._call("create_bucket", **where)
            except ClientError as error:
                if failures.code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

        self._retried(make, "create the bucket")

    def _call(self, operation: str, **arguments: Any) -> Any:
        client = self._connected()
        with self._lock:
            self._requests[operation] += 1
        return getattr(client, operation)(Bucket=self.bucket, **arguments)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _forget_client(self) -> None:
        """Start anew in a forked child, which must share neither connections nor a held lock."""
        self._lock = threading.Lock()
        self._client = None

    def _connect(self) -> Any:
        config = Config(
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
            s3={"addressing_style": "path" if self.endpoint else "auto"},
        )
        session = boto3.session.Session(region_name=self._region)
        try:
            return session.client("s3", endpoint_url=self.endpoint, config=config)
        except ValueError as error:
            raise ConfigurationError(f"DRIFTLINE_S3_ENDPOINT is no endpoint: {error}") from None

    def _retried(self, operation: Callable[[int], T], what: str) -> T:
        """Carry out an operation, again and again while that may help, for at most the store's patience."""
        deadline = self._clock() + self._patience_s
        attempt = 0
        while True:
            try:
                return operation(attempt)
            except (ClientError, BotoCoreError, OSError) as error:
                if isinstance(error, StoreError):
                    raise
                wait_s = random.uniform(0.5, 1.0) * min(2.0, 0.1 * 2**attempt)
                if not failures.is_retryable(error) or self._clock() + wait_s > deadline:
                    raise failures.unavailable(error, what, self.bucket, self.endpoint) from None
                logger.warning("cannot %s yet (%s), trying again in %.1f s", what, failures.brief(error), wait_s)
            self._sleep(wait_s)
            attempt += 1


def _forget_clients() -> None:
    for store in tuple(_stores):
        store._forget_client()


os.register_at_fork(after_in_child=_forget_clients)


def _store_unix(answer: dict[str, Any]) -> float:
    """The store's clock at an answer, in whole Unix seconds."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()


def probe_conditional_writes(store: ObjectStore) -> None:
    """Refuse a bucket that ignores `If-None-Match` or `If-Match`: a run in it could lose its commits.

    Writes and deletes one small object, but lists first: a write makes SeaweedFS create a missing bucket.

    Raises:
        StoreUnavailable: The bucket or its endpoint is not there.
        ConfigurationError: The store takes conditional writes for plain ones.
    """
    key = f"{keys.PROBE}{uuid.uuid4().hex}"
    next(store.list(key), None)
    try:
        first = store.create(key, b"first")
        _must_lose(lambda: store.create(key, b"second"), "If-None-Match")
        store.swap(key, b"third", first.etag)
        _must_lose(lambda: store.swap(key, b"fourth", first.etag), "If-Match")
    finally:
        store.delete([key])


def _must_lose(write: Callable[[], WriteResult], header: str) -> None:
    try:
        write()
    except PreconditionFailed:
        return
    raise ConfigurationError(
        f"the object store ignores {header}, on which every commit rests: use a store with conditional writes "
        "(Amazon S3, SeaweedFS, MinIO, Ceph), and no proxy that drops the header"
    )
