"""The parent's side: run a child process, hear it, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from driftline.errors import ConfigurationError, ProcessFailed, TransientProcessFailure
from driftline.process import exit_codes
from driftline.process.groups import signal_group, signal_name

STOP_DEADLINE_S = 15.0
DRAIN_DEADLINE_S = 2.0
"""How long output may still arrive after the process group is gone."""
LOG_TAIL_LINES = 20
LINE_LIMIT_BYTES = 4 * 2**20
TOKEN_VARIABLE = "DRIFTLINE_SUPERVISED_BY"

Event = Mapping[str, Any]
Listener = Callable[[Event], Awaitable[None] | None]
LogListener = Callable[[str], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """How a child that did its work ended."""

    exit_code: int
    result: Event | None
    """Its last `result` event."""
    seconds: float


@dataclass(slots=True)
class _Heard:
    """What a child has said so far."""

    result: Event | None = None
    error: Event | None = None
    tail: deque[str] = field(default_factory=lambda: deque[str](maxlen=LOG_TAIL_LINES))


async def supervise(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_event: Listener | None = None,
    on_log: LogListener | None = None,
    stop_deadline_s: float = STOP_DEADLINE_S,
) -> ProcessOutcome:
    """Run a child process to its end; whatever happens, nothing of its process group stays behind.

    Args:
        argv: The command.
        env: Its whole process environment; None is this process's own.
        cwd: Its working directory; None is this process's own.
        on_event: Called, in this event loop, for each event of the child. May be a coroutine function.
        on_log: Called for each line of its log, and each line on stdout that is not an event.
        stop_deadline_s: Seconds between SIGTERM and SIGKILL when the child has to be stopped.

    Raises:
        ConfigurationError: The child says that a setting is impossible.
        TransientProcessFailure: It ended in a way that a restart may mend (exit code 75, or a signal).
        ProcessFailed: It could not be started, or ended with another error. The message carries its last error
            event and the end of its log.
    """
    token = uuid.uuid4().hex
    child_env = dict(os.environ if env is None else env)
    child_env[TOKEN_VARIABLE] = f"{child_env.get(TOKEN_VARIABLE, '')}:{token}"
    started = time.monotonic()
    process, exited = await _start(argv, child_env, cwd)
    heard = _Heard()
    readers = [
        asyncio.create_task(_read_events(process, heard, on_event, on_log)),
        asyncio.create_task(_read_log(process, heard, on_log)),
    ]
    try:
        await _wait_for_exit(exited, readers)
    except BaseException:
        await _stop(process, exited, token, readers, stop_deadline_s)
        raise
    signal_group(process.pid, token, signal.SIGKILL)
    await _drain(process, readers)
    exit_code = cast(int, process.returncode)
    if exit_code:
        raise _failure(argv, exit_code, heard)
    return ProcessOutcome(exit_code, heard.result, time.monotonic() - started)


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells of the exit itself; `Process.wait` returns only when the last holder of the pipes is gone, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=2**18, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


async def _start(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None
) -> tuple[asyncio.subprocess.Process, asyncio.Event]:
    """Start the process as leader of its own session; the event is set when it has ended."""
    loop = asyncio.get_running_loop()
    pipe = asyncio.subprocess.PIPE
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: _Protocol(loop),
            *argv,
            env=env,
            cwd=cwd,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except OSError as error:
        raise ProcessFailed(f"cannot start {argv[0]!r}: {error}") from None
    return asyncio.subprocess.Process(transport, protocol, loop), protocol.exited


async def _wait_for_exit(exited: asyncio.Event, readers: Sequence[asyncio.Task[None]]) -> None:
    """Wait until the process has ended. A listener that raises ends the wait with its exception."""
    exit_task = asyncio.create_task(exited.wait())
    try:
        waiting: set[asyncio.Task[Any]] = {exit_task, *readers}
        while not exit_task.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {exit_task}:
                task.result()
    finally:
        exit_task.cancel()


async def _stop(
    process: asyncio.subprocess.Process,
    exited: asyncio.Event,
    token: str,
    readers: Sequence[asyncio.Task[None]],
    deadline_s: float,
) -> None:
    """SIGTERM to the group, SIGKILL when the deadline has passed or this wait is itself cancelled."""
    try:
        signal_group(process.pid, None, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(exited.wait(), deadline_s)
    finally:
        signal_group(process.pid, token, signal.SIGKILL)
        for reader in readers:
            reader.cancel()
        await exited.wait()
        await asyncio.gather(*readers, return_exceptions=True)
        _close(process)


async def _drain(process: asyncio.subprocess.Process, readers: Sequence[asyncio.Task[None]]) -> None:
    """Hear what was still in the pipes; a descendant that escaped the kill may not hold them open for ever."""
    try:
        _, late = await asyncio.wait(readers, timeout=DRAIN_DEADLINE_S)
    finally:
        for reader in readers:
            reader.cancel()
        _close(process)
    await asyncio.gather(*late, return_exceptions=True)
    for reader in readers:
        if not reader.cancelled():
            reader.result()


def _close(process: asyncio.subprocess.Process) -> None:
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _read_events(
    process: asyncio.subprocess.Process, heard: _Heard, on_event: Listener | None, on_log: LogListener | None
) -> None:
    async for line in _lines(cast(asyncio.StreamReader, process.stdout)):
        event = _parse_event(line)
        if event is None:
            heard.tail.append(line)
            await _tell(on_log, line)
            continue
        if event["event"] == "result":
            heard.result = event
        elif event["event"] == "error":
            heard.error = event
        await _tell(on_event, event)


async def _read_log(process: asyncio.subprocess.Process, heard: _Heard, on_log: LogListener | None) -> None:
    async for line in _lines(cast(asyncio.StreamReader, process.stderr)):
        heard.tail.append(line)
        await _tell(on_log, line)


async def _tell(listener: Callable[[Any], Awaitable[None] | None] | None, value: Any) -> None:
    if listener is not None:
        answer = listener(value)
        if inspect.isawaitable(answer):
            await answer


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of a stream without their ends. Lines beyond the limit are cut up; progress bars show their end."""
    rest = b""
    while chunk := await reader.read(2**16):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_LIMIT_BYTES:
            whole.append(rest)
            rest = b""
        for line in whole:
            yield _text(line)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


def _parse_event(line: str) -> Event | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if isinstance(value, dict) and isinstance(cast(dict[str, Any], value).get("event"), str):
        return cast(dict[str, Any], value)
    return None


def _failure(argv: Sequence[str], exit_code: int, heard: _Heard) -> ProcessFailed | ConfigurationError:
    """The error for a child that ended badly."""
    error = heard.error or {}
    if error.get("type") == "ConfigurationError" or (exit_code == exit_codes.CONFIGURATION and error):
        return ConfigurationError(str(error.get("message")))
    how = f"was ended by {signal_name(-exit_code)}" if exit_code < 0 else f"ended with exit code {exit_code}"
    message = f"{' '.join(argv[:6])} {how}"
    if error:
        message += f": {error.get('type')}: {error.get('message')}"
    if heard.tail:
        message += "\nthe end of its log:\n  " + "\n  ".join(heard.tail)
    transient = exit_code == exit_codes.TRANSIENT or exit_code < 0
    return TransientProcessFailure(message) if transient else ProcessFailed(message)
