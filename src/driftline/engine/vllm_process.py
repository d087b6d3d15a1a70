# pyright: basic
"""vLLM's `AsyncLLM` and the processes behind it: start with a deadline, calls that cannot hang, a sure end.

| what may go wrong | what is done |
|---|---|
| it never becomes ready | at the deadline its processes are killed; the error holds the end of its log |
| its process dies | a watcher sees it; what is in flight fails with `EngineDied` (vLLM leaves calls waiting) |
| it stops answering | the call's deadline passes; the engine counts as dead and is killed |
| this process is killed | the engine's processes follow it (`driftline_follow_parent`) |

Nothing in these processes is worth a slow goodbye: they are killed, which takes milliseconds; vLLM's own
shutdown takes five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import psutil

from driftline.engine.log_tail import LogTail
from driftline.engine.process_tree import children_named, kill_all, with_descendants
from driftline.errors import ConfigurationError, EngineDied, EngineError, EngineStartFailed

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 60.0
WATCH_INTERVAL_S = 0.2
LOG_DEADLINE_S = 0.5
PROCESS_NAME = "EngineCore"
ENDED = "its process ended"

T = TypeVar("T")


class EngineProcess:
    """One `AsyncLLM`, made by `build` in a thread. `llm` is it, as long as it lives."""

    def __init__(self, build: Callable[[], Any], *, start_deadline_s: float) -> None:
        self.llm: Any = None
        self._build = build
        self._start_deadline_s = start_deadline_s
        self._log = LogTail()
        self._processes: list[psutil.Process] = []
        self._watcher: asyncio.Task[None] | None = None
        self._dead: str | None = None
        self._death_text: str | None = None
        self._death = asyncio.Event()

    @property
    def dead(self) -> bool:
        """Whether it is known to be gone."""
        return self._dead is not None

    async def start(self) -> None:
        """Start the engine's processes and wait until they are ready.

        Raises:
            EngineStartFailed: The start raised, or its deadline passed.
        """
        before = children_named(PROCESS_NAME)
        building = _in_thread(self._build_logged)
        try:
            async with asyncio.timeout(self._start_deadline_s):
                self.llm = await asyncio.wrap_future(building)
        except BaseException as error:
            self._abandon(building, before)
            if isinstance(error, TimeoutError):
                raise EngineStartFailed(
                    f"the engine was not ready within {self._start_deadline_s:.0f} s: raise engine.start_deadline_s, "
                    f"or see in the end of its log what it waits for:{self._log.text}"
                ) from None
            if isinstance(error, Exception):
                text = f"the engine did not start: {type(error).__name__}: {error}{self._log.text}"
                raise EngineStartFailed(text) from error
            raise
        self._processes = _new_processes(before)
        self._watcher = asyncio.create_task(self._watch(), name="engine-watch")

    async def call(self, answer: Awaitable[T], what: str, deadline_s: float = CALL_DEADLINE_S) -> T:
        """Wait for an answer of the engine, its death or the deadline, whichever comes first.

        Raises:
            EngineDied: It is gone, or did not answer in time (it is then killed).
        """
        call = asyncio.ensure_future(answer)
        death = asyncio.create_task(self._death.wait())
        try:
            self.check_alive()
            await asyncio.wait({call, death}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            if not self._death.is_set():
                self.kill(f"it did not answer to {what} within {deadline_s:.0f} s")
            raise self.death()
        except Exception as error:
            raise self.translated(error) from None
        finally:
            call.cancel()
            death.cancel()

    def translated(self, error: Exception) -> Exception:
        """Our word for vLLM's errors (of a dead engine, a refused request, a failed one); others as they are."""
        names = {base.__name__ for base in type(error).__mro__}
        if "EngineDeadError" in names:
            self._mark_dead(ENDED)
            return self.death()
        if "VLLMClientError" in names:
            return ConfigurationError(f"vLLM refuses the request: {error}")
        if "EngineGenerateError" in names:
            return EngineError(f"vLLM failed on a request: {error.__cause__!r}")
        return error

    def check_alive(self) -> None:
        """Raise `EngineDied` if the engine is gone or was never started."""
        if self.llm is not None and self.llm.errored:
            self._mark_dead(ENDED)
        if self._dead is not None:
            raise self.death()
        if self.llm is None:
            raise EngineDied("the engine is not started: await start() first")

    def death(self) -> EngineDied:
        """The error of whoever needs an engine that is gone."""
        if self._death_text is None:
            self._log.wait(LOG_DEADLINE_S)
            self._death_text = f"the engine is gone: {self._dead or ENDED}; the end of its log:{self._log.text}"
        return EngineDied(self._death_text)

    def kill(self, reason: str) -> None:
        """End the engine at once. What is in flight fails; nothing of it stays behind. May be repeated."""
        self._mark_dead(reason)
        llm, self.llm = self.llm, None
        if llm is not None:
            _fail_in_flight(llm)
            llm.engine_core.resources.engine_dead = True
        kill_all(with_descendants(self._processes))
        if llm is not None:
            llm.shutdown(timeout=0.0)
            # Its finalizer would do it once more, and stumble over an interpreter that is going down.
            llm.shutdown = _nothing

    async def close(self) -> None:
        """`kill`, and wait for the watcher."""
        self.kill("it was closed")
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])

    def _build_logged(self) -> Any:
        with self._log.inherited():
            return self._build()

    def _abandon(self, building: Future[Any], before: dict[int, psutil.Process]) -> None:
        """Give a start up; should it succeed after all, that engine is ended then."""
        self._mark_dead("it did not start")
        kill_all(_new_processes(before))
        building.add_done_callback(_end_late)
        self._log.wait(LOG_DEADLINE_S)

    def _mark_dead(self, reason: str) -> None:
        if self._dead is None:
            self._dead = reason
        self._death.set()

    async def _watch(self) -> None:
        while not self._death.is_set():
            await asyncio.sleep(WATCH_INTERVAL_S)
            llm = self.llm
            if llm is not None and llm.errored and self._dead is None:
                self._mark_dead(ENDED)
                _fail_in_flight(llm)
                logger.error("%s", self.death())


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Run in a daemon thread: a start that hangs must not keep this process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, name="engine-start", daemon=True).start()
    return future


def _end_late(building: Future[Any]) -> None:
    with contextlib.suppress(Exception):
        building.result().shutdown(timeout=0.0)


def _nothing() -> None:
    return None


def _fail_in_flight(llm: Any) -> None:
    """Make every waiting `generate` raise; vLLM's shutdown would leave it waiting."""
    llm.output_processor.propagate_error(llm.dead_error)


def _new_processes(before: dict[int, psutil.Process]) -> list[psutil.Process]:
    new = [process for pid, process in children_named(PROCESS_NAME).items() if pid not in before]
    return with_descendants(new)
