"""Clients that never end their requests: they are hung up on, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from driftline.offsets import connections
from driftline.store.memory import MemoryStore
from tests.support.offset_service import serving_here

PATIENCE_S = 0.5
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
BEGINNINGS = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "headers that do not end": HEAD + b"X-Slow: a",
    "a body that does not come": HEAD + b"Content-Length: 100000\r\n\r\nx",
    "a second request that does not end": HEAD + b"\r\n" + HEAD,
}


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(connections, "REQUEST_S", PATIENCE_S)
    with serving_here(MemoryStore()) as found:
        yield found


def opened(address: str, beginning: bytes) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)), timeout=20)
    found.sendall(beginning)
    return found


def hung_up(one: socket.socket) -> bool:
    """Whether the other side closes, before this side's patience ends."""
    try:
        while one.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_many_slow_clients_hold_up_nobody_and_are_hung_up_on(address: str):
    slow = [opened(address, beginning) for beginning in BEGINNINGS.values() for _ in range(40)]
    began = time.monotonic()
    assert httpx.get(f"{address}/healthz").status_code == 200
    for one in slow:
        # Each byte is a sign of life, and no reason to wait longer.
        try:
            one.sendall(b"y")
        except ConnectionError:
            continue
    kinds = [name for name in BEGINNINGS for _ in range(40)]
    kept = {name for name, one in zip(kinds, slow, strict=True) if not hung_up(one)}
    assert kept == set()
    assert time.monotonic() - began < 20
    assert httpx.get(f"{address}/healthz").status_code == 200
    for one in slow:
        one.close()


def test_an_endless_header_is_refused_before_it_fills_the_memory(address: str):
    sent = 0
    with opened(address, HEAD + b"X: ") as one, contextlib.suppress(ConnectionError):
        while sent < 2**26:
            one.sendall(b"a" * 65_536)
            sent += 65_536
    assert sent < 2**26
    assert httpx.get(f"{address}/healthz").status_code == 200


def test_a_client_that_asks_again_later_keeps_its_connection(address: str):
    client = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    client.request("GET", "/healthz")
    assert client.getresponse().read() == b'{"status":"ok"}'
    kept = client.sock
    time.sleep(2 * PATIENCE_S)
    client.request("GET", "/healthz")
    assert client.getresponse().status == 200
    assert client.sock is kept
    client.close()
