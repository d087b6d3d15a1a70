"""One session with an OpenEnv server: a WebSocket, one question at a time, every wait bounded.

A task of its own receives, as long as the session is open: aiohttp answers a server's pings while it receives and at
no other time, and a policy may take longer over a turn than the server waits for its pong (uvicorn: 20 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, cast

import aiohttp

from driftline.errors import EnvironmentFailed

CLOSE_DEADLINE_S = 5.0
HEARTBEAT_S = 20.0
LONGEST_MESSAGE = 64 * 2**20
"""Bytes of one answer."""
MOST_UNREAD = 4
"""Answers that wait to be asked for. One is usual; a server that talks on is not received from any more."""
OF_THE_FORM = frozenset({"missing", "extra_forbidden", "model_type", "model_attributes_type", "dict_type"})
"""Kinds of validation error that no text of the policy's mends: the action has other fields than it should."""


def told_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Of a server's metadata, what a task depends on."""
    return {"name": metadata.get("name"), "version": metadata.get("version")}


class Refused(ValueError):
    """The server's schema does not take what was sent."""


class Session:
    """A connection, which is closed in every case by `close`.

    A question that is not answered, whatever the reason, is the last: an answer that comes late is none to the next.
    """

    def __init__(self, url: str, *, connect_s: float, message_s: float) -> None:
        """Remember where the server is (`http://...`); times are in seconds."""
        self._url = url.rstrip("/")
        self._connect_s = connect_s
        self._message_s = message_s
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._arrived: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue(MOST_UNREAD)
        self._out_of_step = False

    async def open(self) -> None:
        """Connect.

        Raises:
            EnvironmentFailed: There is no server, or it does not answer in time.
        """
        self._client = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(self._connect_s):
                self._socket = await self._client.ws_connect(
                    f"{self._url}/ws", max_msg_size=LONGEST_MESSAGE, heartbeat=HEARTBEAT_S
                )
        except TimeoutError:
            raise EnvironmentFailed(f"{self._url} did not answer within {self._connect_s:g} s: is it up?") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EnvironmentFailed(f"{self._url} cannot be reached ({error}): is it up?") from error
        self._receiver = asyncio.create_task(self._receive(self._socket), name=f"receiving from {self._url}")

    async def metadata(self) -> Mapping[str, Any]:
        """What the server says of itself.

        Raises:
            EnvironmentFailed: It does not answer in time, or not with an object.
        """
        assert self._client is not None
        try:
            async with asyncio.timeout(self._connect_s), self._client.get(f"{self._url}/metadata") as answer:
                answer.raise_for_status()
                found: object = await answer.json(content_type=None)
        except TimeoutError:
            raise EnvironmentFailed(f"{self._url}/metadata took longer than {self._connect_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EnvironmentFailed(f"{self._url}/metadata cannot be read ({error})") from error
        if not isinstance(found, dict):
            raise EnvironmentFailed(f"{self._url}/metadata is no object: it is no OpenEnv server")
        return cast(dict[str, Any], found)

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the observation: `observation`, `reward`, `done`, and perhaps `metadata`.

        Raises:
            Refused: What was sent does not fit the server's schema.
            EnvironmentFailed: The server raised, is full, does not answer in time, or not in this protocol.
        """
        answer = await self._exchange(kind, {"type": kind, "data": dict(data)})
        told = answer.get("data")
        if not isinstance(told, dict):
            raise EnvironmentFailed(f"{self._url} answered {kind} without data: it is no OpenEnv server")
        found = cast(dict[str, Any], told)
        if answer.get("type") == "error":
            raise self._error(kind, found)
        if answer.get("type") != "observation" or not isinstance(found.get("observation"), dict):
            raise EnvironmentFailed(f"{self._url} answered {kind} with {answer.get('type')!r}, not an observation")
        return found

    async def close(self) -> None:
        """Say goodbye, and close the connection; more than once is allowed."""
        socket, self._socket = self._socket, None
        client, self._client = self._client, None
        receiver, self._receiver = self._receiver, None
        try:
            if receiver is not None:
                receiver.cancel()
                await asyncio.wait([receiver])
            if socket is not None:
                with contextlib.suppress(aiohttp.ClientError, OSError, RuntimeError, TimeoutError):
                    async with asyncio.timeout(CLOSE_DEADLINE_S):
                        if not socket.closed:
                            await socket.send_str(json.dumps({"type": "close"}))
                        await socket.close()
        finally:
            if client is not None:
                await client.close()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Pass on what arrives, the end of the connection last."""
        while True:
            try:
                arrived = await socket.receive()
            except (aiohttp.ClientError, OSError) as error:  # its pong found no connection
                arrived = aiohttp.WSMessage(aiohttp.WSMsgType.ERROR, error, None)
            await self._arrived.put(arrived)
            if arrived.type is not aiohttp.WSMsgType.TEXT:
                return

    async def _exchange(self, kind: str, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._socket is None or self._out_of_step:
            raise EnvironmentFailed(f"{self._url}: {kind} without a connection that answers: call reset first")
        self._out_of_step = True
        arrived = await self._answer(self._socket, kind, message)
        self._out_of_step = False
        return arrived

    async def _answer(
        self, socket: aiohttp.ClientWebSocketResponse, kind: str, message: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._message_s):
                if self._arrived.empty():  # else it has spoken unasked: why it ends the session
                    await socket.send_str(json.dumps(message))
                arrived = await self._arrived.get()
        except TimeoutError:
            raise EnvironmentFailed(
                f"{self._url} did not answer {kind} within {self._message_s:g} s: raise message_deadline_s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EnvironmentFailed(f"{self._url}: the connection was lost at {kind} ({error})") from error
        if arrived.type is not aiohttp.WSMsgType.TEXT:
            raise EnvironmentFailed(f"{self._url} ended the connection at {kind} ({arrived.type.name})")
        try:
            answer: object = json.loads(arrived.data)
        except ValueError as error:
            raise EnvironmentFailed(f"{self._url} answered {kind} with no JSON ({error})") from None
        if not isinstance(answer, dict):
            raise EnvironmentFailed(f"{self._url} answered {kind} with {type(answer).__name__}, not an object")
        return cast(dict[str, Any], answer)

    def _error(self, kind: str, told: Mapping[str, Any]) -> Exception:
        """What an error of the server's stands for."""
        code, message = told.get("code"), told.get("message")
        if code == "CAPACITY_REACHED":
            return EnvironmentFailed(
                f"{self._url} is full ({message}): raise its max_concurrent_envs, or play fewer at once"
            )
        if code != "VALIDATION_ERROR":
            return EnvironmentFailed(f"{self._url}: {kind} raised {code}: {message}")
        told_errors = cast(list[object], told.get("errors") or [])
        errors = [cast(dict[str, Any], one) for one in told_errors if isinstance(one, dict)]
        wrong_form = [one for one in errors if one.get("type") in OF_THE_FORM]
        words = "; ".join(f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}" for one in errors)
        if wrong_form:
            remedy = "`action_field` or `act`" if kind == "step" else "`reset_options`"
            return EnvironmentFailed(f"{self._url}: {kind} takes other fields ({words}): correct {remedy}")
        return Refused(words or str(message))
