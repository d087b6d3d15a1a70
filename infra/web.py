"""Requests to the stack's own servers: small JSON documents, short deadlines, never through a proxy."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from driftline.errors import StackError

TIMEOUT_S = 5.0

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


def send(method: str, url: str, document: Any = None, *, timeout_s: float = TIMEOUT_S) -> Any:
    """One request with a JSON body; returns the JSON answer, None where that is empty.

    Raises:
        StackError: The server cannot be reached or refuses.
    """
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with _opener.open(request, timeout=timeout_s) as response:
            text = response.read()
    except urllib.error.HTTPError as error:
        detail = error.read()[:300].decode(errors="replace")
        raise StackError(f"{method} {url} was refused with {error.code}: {detail}") from error
    except OSError as error:
        raise StackError(f"{method} {url} failed: {getattr(error, 'reason', None) or error}") from error
    return json.loads(text) if text else None
