"""The offset service in this process, without a socket; and as the process that it is."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import httpx
import uvicorn
from pydantic import SecretStr

from driftline.offsets.app import build_app
from driftline.offsets.server import configuration, listen
from driftline.store.protocol import ObjectStore

START_S = 60.0


@contextlib.asynccontextmanager
async def served(
    store: ObjectStore,
    *,
    token: str | None = None,
    deadline_s: float = 20.0,
    clock: Callable[[], float] = time.time,
    host: str = "localhost",
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, whose deadline no slow machine reaches."""
    app = build_app(store, token=SecretStr(token) if token else None, deadline_s=deadline_s, clock=clock)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client,
    ):
        yield client


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def serving_here(store: ObjectStore, token: str | None = None) -> Iterator[str]:
    """The application behind uvicorn, in a thread of this process; yields its address."""
    app, port = build_app(store, token=SecretStr(token) if token else None), free_port()
    server = uvicorn.Server(configuration(app))
    taken = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
    thread.start()
    try:
        until = time.monotonic() + START_S
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(START_S)


@contextlib.contextmanager
def serving(environment: Mapping[str, str], folder: Path, *arguments: str) -> Iterator[str]:
    """`driftline offsets serve` on a free port; yields its address, and ends it. Its log is `folder/serve.log`."""
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "from driftline.cli import main; main()",
        "offsets",
        "serve",
        "--port",
        str(port),
    ]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, **environment, "DRIFTLINE_WORK_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_open(process, port, folder / "serve.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_open(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the service has ended: {log.read_text()}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the service did not answer within {START_S:.0f} s: {log.read_text()}")
