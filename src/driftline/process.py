"""Both sides of a supervised child process: the parent's `supervise`, the child's `child_main` and `emit`.

    parent (a flow)                              child (`python -m driftline...`, leader of its own session)
    supervise(argv) ── stdin: the lifeline ────▶ EOF: the parent is gone; end the group, then itself
         on_event  ◀── stdout: events, JSON ──── emit({"event": "progress", ...})
         on_log    ◀── stderr: log lines ─────── logging, stray prints, output of grandchildren

What ends what: a child that ends takes its whole group with it; a cancelled or failing `supervise` ends the
group (SIGTERM, then SIGKILL after a deadline); a parent that is killed closes the lifeline. A descendant that
has left the group is found by a token in its process environment (Linux).

Exit codes of a child: 0 done, 2 `ConfigurationError`, 75 what a restart may mend, 130 and 143 stopped by a
signal, 1 anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import select
import signal
import stat
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from driftline.errors import (
    ConfigurationError,
    DeadlineExceeded,
    EngineDied,
    ProcessFailed,
    StoreUnavailable,
    TransientProcessFailure,
    WeightUpdateFailed,
)

logger = logging.getLogger(__name__)

EXIT_CONFIGURATION = 2
EXIT_TRANSIENT = 75
STOP_DEADLINE_S = 15.0
DRAIN_DEADLINE_S = 2.0
"""How long output may still arrive after the process group is gone."""
ORPHAN_STOP_S = 3.0
"""How long an orphaned child has for its clean stop before it kills its group."""
EXIT_DEADLINE_S = 10.0
"""How long threads that outlive a child's main function may delay its exit."""
LOG_TAIL_LINES = 20
LINE_LIMIT_BYTES = 4 * 2**20
TOKEN_VARIABLE = "DRIFTLINE_SUPERVISED_BY"

TRANSIENT = (EngineDied, WeightUpdateFailed, StoreUnavailable, DeadlineExceeded, TransientProcessFailure)
"""Errors that a restart of the process may mend."""

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
    _signal_all(process.pid, token, signal.SIGKILL)
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
        _signal_all(process.pid, None, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(exited.wait(), deadline_s)
    finally:
        _signal_all(process.pid, token, signal.SIGKILL)
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
    if error.get("type") == "ConfigurationError" or (exit_code == EXIT_CONFIGURATION and error):
        return ConfigurationError(str(error.get("message")))
    how = f"was ended by {_signal_name(-exit_code)}" if exit_code < 0 else f"ended with exit code {exit_code}"
    message = f"{' '.join(argv[:6])} {how}"
    if error:
        message += f": {error.get('type')}: {error.get('message')}"
    if heard.tail:
        message += "\nthe end of its log:\n  " + "\n  ".join(heard.tail)
    transient = exit_code == EXIT_TRANSIENT or exit_code < 0
    return TransientProcessFailure(message) if transient else ProcessFailed(message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_all(group: int, token: str | None, number: signal.Signals) -> None:
    """Signal a process group, and with a token also the descendants that have left it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in _holders(token) if token else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _holders(token: str) -> list[int]:
    """Processes whose environment carries the token. Empty where there is no /proc."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if token.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


# ---- the child's side


class _Events:
    """Where `emit` writes: stdout, until `child_main` has set the event pipe aside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.descriptor = 1

    def set_aside(self) -> None:
        """Keep stdout for events alone: whatever else prints there, or inherits it, gets stderr."""
        sys.stdout.flush()
        self.descriptor = os.dup(1)
        os.dup2(2, 1)

    def write(self, line: bytes) -> None:
        with self.lock, contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self.descriptor, line) :]


_events = _Events()
_orphaned = threading.Event()


def emit(event: Event) -> None:
    """Send one event to the supervisor. Thread-safe; a line is never torn. No error when nobody listens."""
    _events.write(json.dumps(event, default=str).encode() + b"\n")


Main = Callable[[], Any] | Callable[[], Coroutine[Any, Any, Any]]


def child_main(run: Main, *, lifeline: bool = True) -> NoReturn:
    """Run `run` as the main function of a supervised child, and exit with the code its outcome deserves.

    Logs go to stderr; SIGTERM acts like Ctrl-C (`KeyboardInterrupt`, or cancellation of the main task of
    `asyncio.run`), so `finally` blocks run; an error is logged, and sent as an `error` event.

    Args:
        run: A plain or a coroutine function.
        lifeline: Whether EOF on stdin ends this process; only where stdin is a pipe or socket in any case.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    stopped_by = _act_on_signals()
    _events.set_aside()
    if lifeline and _is_lifeline(0):
        threading.Thread(target=_watch_lifeline, args=(os.getppid(),), name="lifeline", daemon=True).start()
    code = _run(run, stopped_by)
    if _orphaned.is_set():
        _signal_own(signal.SIGKILL)
    logging.shutdown()
    last_resort = threading.Timer(EXIT_DEADLINE_S, os._exit, args=(code,))
    last_resort.daemon = True
    last_resort.start()
    sys.exit(code)


def _act_on_signals() -> list[int]:
    stopped_by: list[int] = []

    def stop(number: int, _frame: object) -> None:
        stopped_by.append(number)
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    return stopped_by


def _run(run: Main, stopped_by: Sequence[int]) -> int:
    """Run the main function; its errors become an event and an exit code."""
    try:
        if inspect.iscoroutinefunction(run):
            asyncio.run(run())
        else:
            run()
    except (KeyboardInterrupt, asyncio.CancelledError):
        number = stopped_by[0] if stopped_by else signal.SIGINT
        logger.info("stopped by %s", _signal_name(number))
        return 128 + number
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:  # the policy: every error of a child is reported, then decides its exit code
        expected = isinstance(error, ConfigurationError)
        logger.error("%s: %s", type(error).__name__, error, exc_info=None if expected else error)
        emit({"event": "error", "type": type(error).__name__, "message": str(error)})
        if expected:
            return EXIT_CONFIGURATION
        return EXIT_TRANSIENT if isinstance(error, TRANSIENT) else 1
    return 0


def _is_lifeline(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _watch_lifeline(parent: int) -> None:
    """Wait until the supervisor is gone, then end this process and everything it started."""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 4096):
            break
    with contextlib.suppress(Exception):
        logger.warning("the supervising process is gone: stopping")
    _orphaned.set()
    _signal_own(signal.SIGTERM)
    time.sleep(ORPHAN_STOP_S)
    _signal_own(signal.SIGKILL)


def _signal_own(number: signal.Signals) -> None:
    """Signal this process last, after its descendants and, where it leads one, its group."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), number)
    else:
        os.kill(os.getpid(), number)


def _descendants(root: int) -> list[int]:
    """Children of children, from /proc; empty where there is none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]
