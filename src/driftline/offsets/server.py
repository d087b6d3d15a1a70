"""uvicorn around the application."""

from __future__ import annotations

import logging

import uvicorn

from driftline.offsets import access
from driftline.offsets.app import build_app
from driftline.params import Settings
from driftline.store.client import open_store

logger = logging.getLogger(__name__)

STORE_PATIENCE_S = 2.0
"""The service reads again and again: one read need not outlast an outage."""
SHUTDOWN_S = 3


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: Store and token.
        host: Address to listen on.
        port: Port to listen on.

    Raises:
        ConfigurationError: Anybody could ask: see `access.check`.
    """
    access.check(host, settings.api_token)
    app = build_app(open_store(settings, patience_s=STORE_PATIENCE_S), token=settings.api_token)
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # `Access` writes a line without query and headers.
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
    )
