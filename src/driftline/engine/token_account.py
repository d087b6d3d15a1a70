"""Where the tokens are that an engine has sampled, counted request by request, apart from the engine's own counter.

A token is in flight until the call that asked for it returns; then it is the caller's. If the call raises (it was
cancelled, or failed), the token is discarded; of a request for log-probabilities it is `scored`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


class Request:
    """One request's count: `sampled` says how many tokens the engine has sampled for it so far."""

    def __init__(self) -> None:
        self.sampled: Callable[[], int] = _none


class TokenAccount:
    """The account of one incarnation of an engine. For one thread: that of the event loop."""

    def __init__(self) -> None:
        self.discarded = 0
        """Tokens sampled for requests whose callers never got them."""
        self.scored = 0
        """Tokens sampled for requests for log-probabilities, which nobody reads."""
        self._open: set[Request] = set()

    @property
    def in_flight(self) -> int:
        """Tokens sampled for requests that have not returned."""
        return sum(request.sampled() for request in self._open)

    @contextmanager
    def request(self, *, scored: bool = False) -> Generator[Request, None, None]:
        """Follow a request; on leaving, its tokens are the caller's, or else discarded or scored."""
        request = Request()
        self._open.add(request)
        returned = False
        try:
            yield request
            returned = True
        finally:
            self._open.remove(request)
            if scored:
                self.scored += request.sampled()
            elif not returned:
                self.discarded += request.sampled()


def _none() -> int:
    return 0
