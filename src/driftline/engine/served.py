"""An engine in a server process of its own, behind the protocol of one in this process.

    ServedEngine ─ JSON over a WebSocket on loopback ─▶ server process ─▶ VllmEngine ─▶ vLLM's processes

The server hosts the very engine that a cell can hold itself, so that updates, probes and counts are the same code;
what is here is the conversation, and the life of the process (`server_process`).

| what may go wrong | what is done |
|---|---|
| the server dies, or closes the connection | every call in flight fails with `EngineDied` and the end of its log |
| it says nothing for `SILENCE_S` (it speaks every second) | it is killed; likewise |
| a call is cancelled | the server is told, and aborts the request; an update is finished all the same |
| an answer crosses with the cancellation | its tokens count as discarded |
| this process is killed | the server sees its stdin close, and ends with all of its processes |
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from driftline.engine.protocol import EngineStatus, Generation, GenerationRequest, UpdateReport
from driftline.engine.server_process import ServerProcess
from driftline.engine.token_account import Request, TokenAccount
from driftline.engine.wire import PATH, Outbox, error_from_wire, from_wire, to_wire
from driftline.errors import DeadlineExceeded, EngineDied, EngineStartFailed
from driftline.params import EngineParameters, Settings
from driftline.params import settings as process_settings
from driftline.records import PolicyVersion, WeightsManifest

LOG = logging.getLogger(__name__)

MAKER = "driftline.engine.making:make_one_engine"
KEY_BYTES = 32
CONNECT_DEADLINE_S = 30.0
SILENCE_S = 60.0
GRACE_S = 5.0
"""The server keeps the deadline of a request; the client gives it so many seconds more to say so."""
NOTHING_YET = EngineStatus(None, 0, 0, 0.0, 0, 0.0, 0, 0)


class ServedEngine:
    """Implements `Engine` over a server process. Not to be started again after `close`."""

    def __init__(
        self,
        params: EngineParameters,
        model_dir: Path,
        *,
        run: str,
        settings: Settings | None = None,
        index: int = 0,
        maker: str = MAKER,
    ) -> None:
        """Describe an engine; nothing starts yet.

        Args:
            params: The engine's parameters; with another backend than `vllm_server` the server hosts that.
            model_dir: The model directory it starts from.
            run: The run whose weights it serves.
            settings: Where the store is; None is this process's own.
            index: Its place among the engines of the cell; decides which GPUs it gets.
            maker: What makes the engine in the server; see `ServerConfig`.
        """
        self._params, self._model_dir, self._run = params, model_dir, run
        self._settings = settings or process_settings()
        self._maker = maker
        self._process = ServerProcess(params, index=index)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._outbox = Outbox()
        self._ids = itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[Any], Request | None]] = {}
        self._account = TokenAccount()
        self._status = NOTHING_YET
        self._version: PolicyVersion | None = None
        self._death: str | None = None
        self._started = False

    async def start(self) -> None:
        """Start the server, and connect to it."""
        key = secrets.token_urlsafe(KEY_BYTES)
        try:
            port = await self._process.start(self._config(key))
            self._session = aiohttp.ClientSession()
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                self._socket = await self._session.ws_connect(
                    f"http://127.0.0.1:{port}{PATH}", headers={"Authorization": f"Bearer {key}"}, max_msg_size=0
                )
        except BaseException as error:
            await self.close()
            if isinstance(error, aiohttp.ClientError | TimeoutError):
                raise EngineStartFailed(f"the engine's server does not answer: {error!r}") from None
            raise
        self._started = True
        self._tasks = [
            asyncio.create_task(self._listen(self._socket), name="engine-server-listen"),
            asyncio.create_task(self._outbox.send_for_ever(_calls, self._socket.send_str), name="engine-server-send"),
        ]

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn."""
        deadline_s = self._params.request_deadline_s
        with self._account.request() as counted:
            try:
                async with asyncio.timeout(deadline_s + GRACE_S):
                    value = await self._ask("generate", to_wire(request), counted=counted)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"the engine's server said nothing of request {request.id} within {deadline_s:.0f} s: raise "
                    "engine.request_deadline_s, or see whether the engine hangs"
                ) from None
            return from_wire(Generation, value)

    async def update(self, manifest: WeightsManifest) -> UpdateReport:
        """Take up a policy version."""
        return from_wire(UpdateReport, await self._ask("update", to_wire(manifest), cancel=False))

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of `token_ids[1:]` under the version held."""
        return tuple(await self._ask("score", list(token_ids)))

    def status(self) -> EngineStatus:
        """Counters and gauges, as the server's last frame gave them; tokens that have come since are in flight."""
        status, account = self._status, self._account
        return replace(
            status,
            in_flight_tokens=status.in_flight_tokens + account.in_flight,
            discarded_tokens=status.discarded_tokens + account.discarded,
        )

    async def close(self) -> None:
        """End the server and all of its processes; calls in flight fail with `EngineDied`."""
        self._fall("it was closed")
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._process.close()
        if self._socket is not None:
            await self._socket.close()
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, value: Any, *, counted: Request | None = None, cancel: bool = True) -> Any:
        """The server's answer to a call."""
        if self._death is not None:
            raise EngineDied(self._death)
        if not self._started:
            raise EngineDied("the engine is not started: await start() first")
        identity, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._waiting[identity] = (answer, counted)
        self._outbox.put({"id": identity, "method": method, "value": value})
        try:
            return await answer
        finally:
            if self._waiting.pop(identity, None) is not None and cancel:
                self._outbox.put({"cancel": identity})

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        reason = "its process ended"
        try:
            while True:
                message = await socket.receive(timeout=SILENCE_S)
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                self._take(json.loads(message.data))
        except TimeoutError:
            reason = f"its server said nothing for {SILENCE_S:.0f} s"
        self._fall(reason)
        LOG.error("%s", self._death)
        await self._process.close()

    def _take(self, frame: dict[str, Any]) -> None:
        """Take in a frame, all at once: its replies belong to its status."""
        for reply in frame["replies"]:
            answer, counted = self._waiting.pop(reply["id"], (None, None))
            tokens = len(reply["value"].get("token_ids", ())) if isinstance(reply.get("value"), dict) else 0
            if counted is not None:
                counted.sampled = int(tokens).__int__
            if answer is None or answer.done():
                self._account.discarded += tokens if counted is None else 0
            elif "error" in reply:
                answer.set_exception(error_from_wire(reply))
            else:
                answer.set_result(reply["value"])
        self._status = from_wire(EngineStatus, frame["status"])

    def _fall(self, reason: str) -> None:
        """The engine is gone: fail what waits. What it had in flight, nobody will get."""
        if self._death is not None:
            return
        self._death = f"the engine is gone: {reason}; the end of its log:{self._process.log_text()}"
        status = self._status
        self._status = replace(
            status,
            running=0,
            waiting=0,
            kv_cache_share=0.0,
            in_flight_tokens=0,
            discarded_tokens=status.discarded_tokens + status.in_flight_tokens,
        )
        waiting, self._waiting = self._waiting, {}
        for answer, _ in waiting.values():
            if not answer.done():
                answer.set_exception(EngineDied(self._death))

    def _config(self, key: str) -> dict[str, Any]:
        hosted = {"replicas": 1} | ({"backend": "vllm"} if self._params.backend == "vllm_server" else {})
        return {
            "key": key,
            "maker": self._maker,
            "run": self._run,
            "model_dir": str(self._model_dir),
            "parameters": self._params.model_copy(update=hosted).model_dump(mode="json"),
            "place": self._settings.model_dump(mode="json", include={"s3_endpoint", "s3_region", "bucket"}),
        }


def _calls(waiting: list[dict[str, Any]]) -> dict[str, Any] | None:
    return {"calls": waiting} if waiting else None
