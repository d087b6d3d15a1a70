"""The one JSON form of every record, and the one place that reads it. Part of `records`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from driftline.errors import CorruptObject

FORMAT = 1

RecordT = TypeVar("RecordT")


@cache
def _adapter(record_type: type[RecordT]) -> TypeAdapter[RecordT]:
    return TypeAdapter(record_type)


def encode(record: object) -> bytes:
    """Return the JSON form of a record, as UTF-8 bytes with sorted keys."""
    value: Any = _adapter(type(record)).dump_python(record, mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decode(record_type: type[RecordT], body: bytes, *, key: str = "") -> RecordT:
    """Read a record from its JSON form.

    Args:
        record_type: The record's class.
        body: UTF-8 JSON, as `encode` wrote it.
        key: Where it was read from, for the message.

    Raises:
        CorruptObject: The bytes are not such a record, or one of a newer format.
    """
    where = key or record_type.__name__
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(f"{where} is not JSON ({error}): it was truncated or overwritten") from None
    written: object = cast(dict[str, object], value).get("format", FORMAT) if isinstance(value, dict) else FORMAT
    if isinstance(written, int) and written > FORMAT:
        raise CorruptObject(
            f"{where} has the newer format {written}, known is {FORMAT}: upgrade driftline to read it"
        )
    try:
        return _adapter(record_type).validate_python(value)
    except ValidationError as error:
        raise CorruptObject(f"{where} is not a {record_type.__name__}: {error}") from None
