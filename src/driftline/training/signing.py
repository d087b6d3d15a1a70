"""Signatures of step records, for runs that have a key.

A step record names its checkpoint by digest, and the checkpoint's files are pickles. Whoever may write to the bucket
could replace record, manifest and files together; without the key they cannot sign what they wrote. The key comes
from `DRIFTLINE_SIGNING_KEY` and is never in the store. HMAC-SHA256 (RFC 2104) over the record's JSON form.
"""

from __future__ import annotations

import hmac
from dataclasses import replace

from driftline.errors import ConfigurationError, CorruptObject
from driftline.params import Settings
from driftline.records import RunDescription, StepRecord, encode

VARIABLE = "DRIFTLINE_SIGNING_KEY"


def key_of(description: RunDescription, found: Settings) -> bytes | None:
    """The key of a run, None where its records are not signed.

    Raises:
        ConfigurationError: The run was started with a key, and this process has none.
    """
    if not description.signed:
        return None
    if found.signing_key is None:
        raise ConfigurationError(
            f"run {description.run!r} was started with a signing key: set {VARIABLE} for the workers of the training "
            "pool, to the value it had then"
        )
    return found.signing_key.get_secret_value().encode()


def sign(record: StepRecord, key: bytes | None) -> StepRecord:
    """The record with its signature; as it is where there is no key."""
    return record if key is None else replace(record, signature=_signature(record, key))


def check(record: StepRecord, key: bytes | None) -> None:
    """Compare a record with its signature. Without a key there is none.

    Raises:
        CorruptObject: The record is not what the holder of the key signed.
    """
    if key is not None and not hmac.compare_digest(record.signature, _signature(record, key)):
        raise CorruptObject(
            f"the record of step {record.step} of run {record.run!r} has not the signature that {VARIABLE} gives: it "
            "was changed, or the key was; its checkpoint is not loaded"
        )


def _signature(record: StepRecord, key: bytes) -> str:
    return hmac.new(key, encode(replace(record, signature="")), "sha256").hexdigest()
