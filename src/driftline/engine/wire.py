"""What an engine's server and its client say to each other: JSON over one WebSocket, in order.

    client ─▶ {"calls": [{"id", "method", "value"}, {"cancel": id}]}
    server ─▶ {"replies": [{"id", "value"} or {"id", "error", "message"}], "status": …}

A frame holds all that has gathered since the last one: few, full frames cost less than many. The status in a frame
is that of the moment after its replies, so that every token of the engine is either in the counts or in a reply
that has come before them: the token ledger of a served engine adds up as that of one in this process.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

from driftline import errors
from driftline.errors import DriftlineError, EngineError, ProbeNotReproduced

PATH = "/engine"
HEARTBEAT_S = 1.0
"""The server speaks at least so often."""

T = TypeVar("T")


class Outbox:
    """Messages that wait for the next frame; used from one event loop."""

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []
        self._filled = asyncio.Event()

    def put(self, message: dict[str, Any]) -> None:
        """Send a message with the next frame."""
        self._waiting.append(message)
        self._filled.set()

    def take(self) -> list[dict[str, Any]]:
        """Everything that waits, at once."""
        self._filled.clear()
        taken, self._waiting = self._waiting, []
        return taken

    async def send_for_ever(
        self, frame: Callable[[list[dict[str, Any]]], dict[str, Any] | None], send: Callable[[str], Awaitable[None]]
    ) -> None:
        """Send a frame whenever something waits, and ask for one now and then all the same.

        Args:
            frame: Makes the frame for these messages, or nothing if it is not worth one.
            send: Sends a text.
        """
        while True:
            if not self._filled.is_set():
                await _wait(self._filled, POLL_S)
            content = frame(self.take())
            if content is not None:
                await send(json.dumps(content, separators=(",", ":")))


POLL_S = 0.02
"""How old counts may get at the client while nothing else is said."""


def to_wire(value: object) -> Any:
    """A dataclass as what JSON can hold."""
    return _adapter(type(value)).dump_python(value)


def from_wire(kind: type[T], value: Any) -> T:
    """A dataclass from what `to_wire` made of it."""
    return _adapter(kind).validate_python(value)


def error_to_wire(error: Exception) -> dict[str, Any]:
    """An error as what JSON can hold; others than ours by their name."""
    ours = isinstance(error, DriftlineError)
    text = str(error) if ours else f"{type(error).__name__}: {error}"
    found = {"error": type(error).__name__ if ours else EngineError.__name__, "message": text}
    if isinstance(error, ProbeNotReproduced) and math.isfinite(error.difference_nats):
        return found | {"difference_nats": error.difference_nats}
    return found


def error_from_wire(value: dict[str, Any]) -> DriftlineError:
    """The error that `error_to_wire` made this of."""
    kind = getattr(errors, value["error"], EngineError)
    if not (isinstance(kind, type) and issubclass(kind, DriftlineError)):
        kind = EngineError
    error = kind(value["message"])
    if isinstance(error, ProbeNotReproduced):
        error.difference_nats = float(value.get("difference_nats", math.inf))
    return error


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting}, timeout=timeout_s)
    waiting.cancel()
