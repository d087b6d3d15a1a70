"""The process of an engine's server: start with a deadline, and a sure end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

import psutil

from driftline import errors
from driftline.engine.environment_variables import engine_environment, visible_devices
from driftline.engine.log_tail import LogTail
from driftline.engine.process_tree import kill_all, with_descendants
from driftline.errors import ConfigurationError, EngineStartFailed
from driftline.params import EngineParameters

LOG_DEADLINE_S = 0.5


class ServerProcess:
    """One server. It ends with this process: its stdin is a pipe that closes then."""

    def __init__(self, params: EngineParameters, *, index: int) -> None:
        self._params, self._index = params, index
        self._log = LogTail()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, config: dict[str, Any]) -> int:
        """Start it, and wait until its engine is ready; returns the port it listens on.

        Raises:
            EngineStartFailed: It did not become ready, or not in time.
            ConfigurationError: The engine cannot start with these parameters.
        """
        deadline_s = self._params.start_deadline_s
        self._process = await self._spawn(config)
        try:
            async with asyncio.timeout(deadline_s):
                event = await self._first_event(self._process)
        except TimeoutError:
            raise EngineStartFailed(
                f"the engine was not ready within {deadline_s:.0f} s: raise engine.start_deadline_s, or see in the "
                f"end of its log what it waits for:{self.log_text()}"
            ) from None
        if event.get("event") == "listening":
            return int(event["port"])
        if event.get("type") == ConfigurationError.__name__:
            raise ConfigurationError(event["message"])
        text = event.get("message") or f"its process ended; the end of its log:{self.log_text()}"
        raise EngineStartFailed(text if event.get("type") in vars(errors) else f"the engine did not start: {text}")

    def log_text(self) -> str:
        """The last lines that it has printed, for a message."""
        if self._process is not None and self._process.returncode is not None:
            self._log.wait(LOG_DEADLINE_S)
        return self._log.text

    async def close(self) -> None:
        """Kill it and all of its descendants, and wait until they are gone. May be repeated."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(psutil.Error):
            first, *others = with_descendants([psutil.Process(process.pid)])
            for one in (first, *others):
                with contextlib.suppress(psutil.Error):
                    one.kill()
            await process.wait()
            await asyncio.to_thread(kill_all, others)
        await process.wait()

    async def _spawn(self, config: dict[str, Any]) -> asyncio.subprocess.Process:
        base = os.environ
        environment = {**base, **visible_devices(self._params, self._index, base)}
        environment |= engine_environment(self._params, base, hosting=True)
        with self._log.for_child() as stderr:
            read_end, write_end = os.pipe()
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "driftline.engine.server", "--config-fd", str(read_end)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    pass_fds=(read_end,),
                    env=environment,
                )
            except BaseException:
                os.close(write_end)
                raise
            finally:
                os.close(read_end)
        # A pipe holds 64 KiB: this does not wait for the reader.
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(json.dumps(config).encode())
        return process

    @staticmethod
    async def _first_event(process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The event that says how the start went; empty if it ended without."""
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") in ("listening", "error"):
                    return event
        await process.wait()
        return {}
