"""A server of OpenEnv's protocol: guess the digit that the seed ends with. Its faults are asked for by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

ACTION = {"properties": {"message": {"type": "string"}, "metadata": {"type": "object"}}}


class Guessing:
    """One session for each connection."""

    def __init__(self, fault: str = "", version: str = "1.0", action: dict[str, Any] | None = None) -> None:
        self.fault = fault
        self.version = version
        self.action = ACTION if action is None else action
        self.heard: list[dict[str, Any]] = []
        self.open = 0
        self.pongs = 0
        self.answer_late = asyncio.Event()

    async def metadata(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "guessing", "description": "digits", "version": self.version})

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": self.action, "observation": {}, "state": {}})

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        self.open += 1
        target = ""
        try:
            if self.fault == "full":
                await socket.send_json(error("CAPACITY_REACHED", "1 of 1 sessions"))
                return socket
            async for message in socket:
                if message.type is WSMsgType.PONG:
                    self.pongs += 1
                    continue
                if message.type is not WSMsgType.TEXT:
                    break
                asked = json.loads(message.data)
                self.heard.append(asked)
                if asked["type"] == "close":
                    break
                if asked["type"] == "reset":
                    target = str(asked["data"]["seed"] % 10)
                if self.fault == "late" and asked["type"] == "step":
                    await self.answer_late.wait()
                answer = self.answer(asked, target)
                if answer is None:
                    continue
                if isinstance(answer, str):
                    await socket.send_str(answer)
                elif answer:
                    await socket.send_json(answer)
                else:
                    break
                if asked["type"] == "reset":  # after the answer: nobody waits for another
                    await socket.ping()
        finally:
            self.open -= 1
            await socket.close()
        return socket

    def answer(self, asked: dict[str, Any], target: str) -> Any:
        if asked["type"] == "reset":
            return observation("Guess a digit.", None, done=False)
        if self.fault in FAULTS:
            return FAULTS[self.fault]
        said = asked["data"].get("message")
        if said is None:
            return refusal("missing", "message", "Field required")
        if len(said) > 10:
            return refusal("string_too_long", "message", "at most 10 characters")
        right = said.strip() == target
        told = observation("Right." if right else "Wrong.", self.reward(right), done=right)
        if self.fault == "more than text":
            told["data"]["observation"] |= {"hint": "?", "left": 3}
        return told

    def reward(self, right: bool) -> Any:
        return {"no reward": None, "odd reward": "much"}.get(self.fault, 1.0 if right else -0.25)


def observation(text: str, reward: Any, *, done: bool) -> dict[str, Any]:
    data = {"observation": {"text": text, "metadata": {"id": 7}}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def refusal(kind: str, field: str, message: str) -> dict[str, Any]:
    return error("VALIDATION_ERROR", "Invalid message", errors=[{"type": kind, "loc": [field], "msg": message}])


FAULTS: dict[str, Any] = {
    "raises": error("EXECUTION_ERROR", "division by zero"),
    "hangs": None,
    "hangs up": {},
    "no JSON": "guess again",
    "another kind": {"type": "state", "data": {"step_count": 1}},
    "no data": {"type": "observation"},
}


@asynccontextmanager
async def serving(guessing: Guessing) -> AsyncIterator[str]:
    """Serve it; gives its URL."""
    app = web.Application()
    app.router.add_get("/metadata", guessing.metadata)
    app.router.add_get("/schema", guessing.schema)
    app.router.add_get("/ws", guessing.session)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
