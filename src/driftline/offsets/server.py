"""uvicorn around the application."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from driftline.errors import ConfigurationError
from driftline.offsets import access
from driftline.offsets.app import build_app
from driftline.offsets.connections import MOST_REQUEST_BYTES, HurriedProtocol
from driftline.params import Settings
from driftline.store.client import open_store

logger = logging.getLogger(__name__)

STORE_PATIENCE_S = 2.0
"""The service reads again and again: one read need not outlast an outage."""
SHUTDOWN_S = 3


def serve(settings: Settings, host: str, port: int, on_listening: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: Store and token.
        host: Address to listen on.
        port: Port to listen on.
        on_listening: Called once the address is taken.

    Raises:
        ConfigurationError: Anybody could ask (see `access.check`), or the address cannot be had.
    """
    access.check(host, settings.api_token)
    app = build_app(open_store(settings, patience_s=STORE_PATIENCE_S), token=settings.api_token)
    taken = listen(host, port)
    on_listening()
    uvicorn.Server(configuration(app)).run(sockets=[taken])


def configuration(app: FastAPI) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=HurriedProtocol,
        ws="none",
        h11_max_incomplete_event_size=MOST_REQUEST_BYTES,
        log_level="warning",
        access_log=False,  # `Access` writes a line without query and headers.
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )


def listen(host: str, port: int) -> socket.socket:
    """Take an address.

    Raises:
        ConfigurationError: Somebody has it, or this machine does not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigurationError(
            f"--host / --port: cannot listen on {host} port {port} ({error.strerror or error}): "
            "choose another --port, or end what has it"
        ) from None
