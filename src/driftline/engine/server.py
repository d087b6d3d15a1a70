"""An engine as a server process: `python -m driftline.engine.server --config-fd N`, started by `ServedEngine`.

It listens on the loopback interface, on a port of the system's choice, which it says in an event on stdout once its
engine is ready. One client at a time speaks the protocol of `driftline.engine.wire` with it, over a WebSocket that
opens only for who has the key. The key comes through a pipe, with all else the server must know; it stands on no
command line, in no environment and in no log.

| what may happen | the server |
|---|---|
| a call is cancelled | cancels it in the engine, which aborts the request |
| the client is gone | ends, and its engine with it |
| the process that started it is gone | likewise (`child_main`) |
| the engine dies | goes on to say so: every call fails with `EngineDied` |
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from driftline.engine.protocol import Engine, EngineStatus, GenerationRequest
from driftline.engine.wire import HEARTBEAT_S, PATH, Outbox, error_to_wire, from_wire, to_wire
from driftline.params import EngineParameters, Settings
from driftline.process import child_main, emit
from driftline.records import WeightsManifest

HOST = "127.0.0.1"

Maker = Callable[[EngineParameters, Path, str, Settings], Engine]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server must know."""

    key: str
    run: str
    model_dir: str
    parameters: dict[str, Any]
    place: dict[str, Any]
    """`Settings` of the store, without credentials: these stay in the environment."""
    maker: str
    """`module:function` that makes the engine, called as `making.make_one_engine`."""


class EngineHost:
    """Serves one engine, which has started, to one client."""

    def __init__(self, engine: Engine, key: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._expected = f"Bearer {key}".encode()
        self._clock = clock
        self._outbox = Outbox()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._said: EngineStatus | None = None
        self._said_at = 0.0
        self._taken = False
        self.left = asyncio.Event()
        """The client has come and gone."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Be the other end of a client's connection."""
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._expected):
            return web.Response(status=HTTPStatus.UNAUTHORIZED)
        if self._taken:
            return web.Response(status=HTTPStatus.CONFLICT, text="another client is connected")
        self._taken = True
        socket = web.WebSocketResponse(max_msg_size=0, compress=False)
        sending: asyncio.Task[None] | None = None
        try:
            await socket.prepare(request)
            sending = asyncio.create_task(self._outbox.send_for_ever(self._frame, socket.send_str))
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    for call in json.loads(message.data)["calls"]:
                        self._take(call)
        finally:
            ending = [*self._calls.values(), *([sending] if sending else [])]
            for task in ending:
                task.cancel()
            if ending:
                await asyncio.wait(ending)
            self.left.set()
        return socket

    def _take(self, call: dict[str, Any]) -> None:
        if "cancel" in call:
            task = self._calls.get(call["cancel"])
            if task is not None:
                task.cancel()
            return
        identity = call["id"]
        self._calls[identity] = asyncio.create_task(self._answer(identity, call["method"], call["value"]))
        self._calls[identity].add_done_callback(lambda _: self._calls.pop(identity))

    async def _answer(self, identity: int, method: str, value: Any) -> None:
        """Between the engine's answer and its place in the outbox nothing may be awaited: see `wire`."""
        try:
            answer = to_wire(await self._ask(method, value))
        except Exception as error:  # the policy: whatever fails is the client's to judge
            self._outbox.put({"id": identity, **error_to_wire(error)})
        else:
            self._outbox.put({"id": identity, "value": answer})

    async def _ask(self, method: str, value: Any) -> Any:
        if method == "generate":
            return await self._engine.generate(from_wire(GenerationRequest, value))
        if method == "update":
            return await self._engine.update(from_wire(WeightsManifest, value))
        if method == "score":
            return await self._engine.score(value)
        raise ValueError(f"no such method: {method}")

    def _frame(self, replies: list[dict[str, Any]]) -> dict[str, Any] | None:
        status, now = self._engine.status(), self._clock()
        if not replies and status == self._said and now - self._said_at < HEARTBEAT_S:
            return None
        self._said, self._said_at = status, now
        return {"replies": replies, "status": to_wire(status)}


async def serve(config: ServerConfig) -> None:
    """Start the engine, announce the port, and serve until the client has gone.

    Raises:
        EngineStartFailed: The engine did not start.
        ConfigurationError: It cannot, with these parameters.
    """
    parameters = EngineParameters.model_validate(config.parameters)
    settings = Settings(**config.place)
    module, _, name = config.maker.partition(":")
    make: Maker = getattr(import_module(module), name)
    engine = make(parameters, Path(config.model_dir), config.run, settings)
    host = EngineHost(engine, config.key)
    application = web.Application()
    application.router.add_get(PATH, host.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    try:
        await engine.start()
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        emit({"event": "listening", "port": runner.addresses[0][1]})
        await host.left.wait()
    finally:
        await engine.close()
        await runner.cleanup()


def main() -> None:
    """Read the configuration from the pipe, and be the server."""
    parser = argparse.ArgumentParser(prog="python -m driftline.engine.server", description="Serve an engine.")
    parser.add_argument("--config-fd", type=int, required=True, help="file descriptor to read the configuration from")
    with os.fdopen(parser.parse_args().config_fd, "rb") as pipe:
        config = from_wire(ServerConfig, json.loads(pipe.read()))
    child_main(partial(serve, config))


if __name__ == "__main__":
    main()
