"""Requests to the stack's own servers: small JSON documents, short deadlines, never through a proxy."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from driftline.errors import StackError

TIMEOUT_S = 5.0
RETRY_S = 0.5
BUSY = (429, 502, 503, 504)

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Empty if the URL answers 200, else what it does instead."""
    try:
        with _opener.open(url, timeout=timeout_s) as response:
            return "" if response.status == HTTPStatus.OK else f"answers {response.status}"
    except urllib.error.HTTPError as error:
        return f"answers {error.code}"
    except (OSError, ValueError) as error:
        return f"does not answer ({getattr(error, 'reason', None) or error})"


def send(
    method: str, url: str, document: Any = None, *, timeout_s: float = TIMEOUT_S, patience_s: float = 0.0
) -> Any:
    """A request with a JSON body; returns the JSON answer, None where that is empty.

    Prefect's server answers 503 while its SQLite database is locked, which happens at its start.

    Args:
        method: HTTP method of an operation that may be repeated.
        url: Where to.
        document: What to send.
        timeout_s: Deadline of one attempt.
        patience_s: How long a server that is not there or busy is asked again.

    Raises:
        Unanswered: The server is not there or busy, and `patience_s` are over.
        StackError: It refuses.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return _send(method, url, document, timeout_s)
        except _Busy as error:
            if time.monotonic() > until:
                raise Unanswered(str(error)) from error
            time.sleep(RETRY_S)


class Unanswered(StackError):
    """The request may succeed later, and was not waited for any longer."""


class _Busy(Exception):
    """The request may succeed later."""


def _send(method: str, url: str, document: Any, timeout_s: float) -> Any:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with _opener.open(request, timeout=timeout_s) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        refusal = f"{method} {url} was refused with {error.code}: {error.read()[:300].decode(errors='replace')}"
        raise (_Busy if error.code in BUSY else StackError)(refusal) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Busy(f"{method} {url} failed: {getattr(error, 'reason', None) or error}") from error
    return json.loads(text) if text else None
