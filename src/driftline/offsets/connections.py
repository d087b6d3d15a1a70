"""What a connection may cost before it has asked for anything: a client that is slow, or endless, is hung up on.

uvicorn closes connections that are idle between two requests; one that begins a request and never ends it, it keeps.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Longest that a request may take to arrive."""
MOST_REQUEST_BYTES = 16_384
"""Most of a request's line and headers."""


class HurriedProtocol(H11Protocol):
    """A connection on which every request has to arrive whole within `REQUEST_S`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._hang_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and has to ask."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """A part of a request: the clock runs from the first one until the last is there."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Between requests uvicorn's own, shorter patience counts, unless the last one still arrives."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._hang_up is None:
            self._hang_up = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._hang_up is not None:
            self._hang_up.cancel()
            self._hang_up = None
