"""Who may ask, and what a browser may do with the answer.

Without a token the service listens on the loopback alone, and answers only to names of it: a page elsewhere that has
made its own name point here gets nothing. With one, every answer about runs needs it; `/healthz` and the page itself,
which holds nothing about any run, do not.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import MutableMapping
from typing import Any

from pydantic import SecretStr
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from driftline.errors import ConfigurationError
from driftline.offsets.problems import ProblemError, respond

logger = logging.getLogger(__name__)

FEWEST_TOKEN_CHARACTERS = 16
OPEN_PATHS = frozenset({"/healthz", "/"})
OPEN_PREFIX = "/page/"
"""The page's own files."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether an address to listen on, or a host that was asked for, is this machine's alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(host: str, token: SecretStr | None) -> None:
    """Refuse to listen where anybody could ask.

    Raises:
        ConfigurationError: Another address than the loopback needs a token; a token must not be guessable.
    """
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"{host} is not the loopback: set DRIFTLINE_API_TOKEN, which every request then has to bear, or listen "
            "on 127.0.0.1"
        )
    wrong = _what_is_wrong(token.get_secret_value()) if token is not None else ""
    if wrong:
        raise ConfigurationError(
            f"DRIFTLINE_API_TOKEN {wrong}: make one with "
            '`python -c "import secrets; print(secrets.token_urlsafe(32))"`'
        )


def _what_is_wrong(token: str) -> str:
    if len(token) < FEWEST_TOKEN_CHARACTERS:
        return f"is shorter than {FEWEST_TOKEN_CHARACTERS} characters"
    if not all("!" <= character <= "~" for character in token):
        return "has characters that no header carries, such as a space, a line's end or an accented letter"
    return ""


class Access:
    """ASGI middleware: host, token, security headers, and a line of log without query or headers."""

    def __init__(self, app: ASGIApp, token: SecretStr | None) -> None:
        self._app = app
        self._token = token.get_secret_value().encode() if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message)
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (self._app if refusal is None else respond(refusal))(scope, receive, guarded)
        milliseconds = 1000 * (time.perf_counter() - began)
        logger.debug("%s %s: %d in %.1f ms", scope["method"], scope["path"], status, milliseconds)

    def _refusal(self, path: str, headers: Headers) -> ProblemError | None:
        if self._token is None:
            host = _host_name(headers.get("host", ""))
            if is_loopback(host):
                return None
            return ProblemError(400, "wrong-host", f"this service is not {host!r}", "ask for localhost or 127.0.0.1")
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX) or self._bears_token(headers):
            return None
        return ProblemError(
            401,
            "token-required",
            "no bearer token, or a wrong one",
            "send the header `Authorization: Bearer` with the value of DRIFTLINE_API_TOKEN",
            headers={"WWW-Authenticate": 'Bearer realm="driftline"'},
        )

    def _bears_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        assert self._token is not None
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
