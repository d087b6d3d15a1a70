"""Signed step records: what the holder of the key wrote, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.errors import ConfigurationError, CorruptObject
from driftline.params import Settings
from driftline.records import FileEntry, StepRecord, decode, encode
from driftline.training.signing import check, key_of, sign
from tests.support.records import description, step_record

KEY = b"sixteen bytes and more"


def settings(key: str | None = None) -> Settings:
    return Settings(signing_key=key)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_signed_record_survives_the_store():
    check(decode(StepRecord, encode(sign(step_record(3, None), KEY))), KEY)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 7},
        {"checkpoint": FileEntry("checkpoints/evil/manifest.json", 1, "00")},
        {"signature": ""},
        {"previous": "another"},
    ],
)
def test_a_changed_record_is_refused(change: dict[str, object]):
    with pytest.raises(CorruptObject, match="its checkpoint is not loaded"):
        check(replace(sign(step_record(3, None), KEY), **change), KEY)


def test_another_key_is_refused():
    with pytest.raises(CorruptObject, match="DRIFTLINE_SIGNING_KEY"):
        check(sign(step_record(3, None), b"another key"), KEY)


def test_a_run_without_a_key_signs_nothing():
    assert sign(step_record(3, None), None) == step_record(3, None)
    check(step_record(3, None), None)
    assert key_of(description(), settings("x" * 16)) is None


def test_a_signed_run_needs_its_key():
    described = replace(description(), signed=True)
    assert key_of(described, settings("x" * 16)) == b"x" * 16
    with pytest.raises(ConfigurationError, match="set DRIFTLINE_SIGNING_KEY"):
        key_of(described, settings())
    with pytest.raises(ValueError, match="at least 16"):
        settings("short")
