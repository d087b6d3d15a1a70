"""The object store of this process: one client for all tasks, however many ask for it."""

from __future__ import annotations

from functools import cache

from driftline.params import Settings, settings
from driftline.store.client import PATIENCE_S, S3Store
from driftline.store.run_store import RunStore


def shared_store(*, patience_s: float = PATIENCE_S) -> S3Store:
    """The store that the settings name."""
    return opened(settings(), patience_s)


def opened(found: Settings, patience_s: float) -> S3Store:
    """The store of these settings, opened once."""
    return _opened(found.bucket, found.s3_endpoint, found.s3_region, patience_s)


def run_store(run: str) -> RunStore:
    """The objects of a run."""
    return RunStore(shared_store(), run)


@cache
def _opened(bucket: str, endpoint: str | None, region: str, patience_s: float) -> S3Store:
    return S3Store(bucket, endpoint=endpoint, region=region, patience_s=patience_s)
