"""Requests and answers on a pipe: two lengths, a head and a body.

The parent's heads are marshalled. Those to the parent are JSON: whoever reads them should not trust what is in here.
"""

from __future__ import annotations

import marshal
import os

# `typing` takes longer to import than all that is above.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Request = dict[str, Any]
    Answer = tuple[Request, bytes]


def read_frame(descriptor: int) -> tuple[Request, bytes] | None:
    """A request and its body; None at the end."""
    lengths = read_exactly(descriptor, 8)
    if lengths is None:
        return None
    head = read_exactly(descriptor, int.from_bytes(lengths[:4], "big"))
    body = read_exactly(descriptor, int.from_bytes(lengths[4:], "big"))
    return None if head is None or body is None else (marshal.loads(head), body)


def read_exactly(descriptor: int, count: int) -> bytes | None:
    """So many bytes; None at the end."""
    got = bytearray()
    while len(got) < count:
        more = os.read(descriptor, count - len(got))
        if not more:
            return None
        got += more
    return bytes(got)


def write_frame(descriptor: int, answer: Request, body: bytes) -> None:
    """Send an answer and its body."""
    head = as_json(answer)
    whole = memoryview(len(head).to_bytes(4, "big") + len(body).to_bytes(4, "big") + head + body)
    while whole:
        whole = whole[os.write(descriptor, whole) :]


def as_json(answer: Request) -> bytes:
    """The head of an answer. The first needs no module for it."""
    if answer == {"ready": True}:
        return b'{"ready": true}'
    import json

    return json.dumps(answer).encode()


def prepare() -> None:
    """Load what answers need, when nobody waits for one."""
    import json  # noqa: F401  # pyright: ignore[reportUnusedImport]
