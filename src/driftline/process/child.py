"""The child's side: tell the supervisor what happens, stop when asked, end when the supervisor is gone."""

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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, cast

from driftline.errors import (
    ConfigurationError,
    DeadlineExceeded,
    EngineError,
    StoreUnavailable,
    TransientProcessFailure,
)
from driftline.process import exit_codes
from driftline.process.groups import signal_name, signal_own

logger = logging.getLogger(__name__)

ORPHAN_STOP_S = 3.0
"""How long an orphaned child has for its clean stop before it kills its group."""
EXIT_DEADLINE_S = 10.0
"""How long threads that outlive a child's main function may delay its exit."""
LIFELINE_POLL_S = 1.0

TRANSIENT = (
    EngineError,
    StoreUnavailable,
    DeadlineExceeded,
    TransientProcessFailure,
)
"""Errors that a restart of the process may mend: all of an engine's, which may be killed while it starts as well."""


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


def emit(event: Mapping[str, Any]) -> None:
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
        signal_own(signal.SIGKILL)
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
        return _stopped(stopped_by[0] if stopped_by else signal.SIGINT)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as raised:  # the policy: every error of a child is reported, then decides its exit code
        if stopped_by:
            logger.warning("while stopping: %s: %s", type(raised).__name__, raised, exc_info=raised)
            return _stopped(stopped_by[0])
        return _report(raised)
    return 0


def _stopped(number: int) -> int:
    logger.info("stopped by %s", signal_name(number))
    return exit_codes.STOPPED + number


def _report(raised: Exception) -> int:
    """Log an error and send it as an event; returns its exit code."""
    error = _cause(raised)
    expected = isinstance(error, ConfigurationError)
    logger.error("%s: %s", type(error).__name__, error, exc_info=None if expected else raised)
    emit({"event": "error", "type": type(error).__name__, "message": str(error)})
    if expected:
        return exit_codes.CONFIGURATION
    return exit_codes.TRANSIENT if isinstance(error, TRANSIENT) else 1


def _cause(raised: Exception) -> Exception:
    """The error that decides, of an exception group: one that no restart mends, if there is one."""
    leaves = _leaves(raised)
    return next((leaf for leaf in leaves if not isinstance(leaf, TRANSIENT)), leaves[0])


def _leaves(raised: Exception) -> list[Exception]:
    if not isinstance(raised, ExceptionGroup):
        return [raised]
    inner = cast(ExceptionGroup[Exception], raised).exceptions
    return [leaf for one in inner for leaf in _leaves(one)]


def _is_lifeline(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _watch_lifeline(parent: int) -> None:
    """Wait until the supervisor is gone, then end this process and everything it started."""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], LIFELINE_POLL_S)
        if readable and not os.read(0, 4096):
            break
    with contextlib.suppress(Exception):
        logger.warning("the supervising process is gone: stopping")
    _orphaned.set()
    signal_own(signal.SIGTERM)
    time.sleep(ORPHAN_STOP_S)
    signal_own(signal.SIGKILL)
