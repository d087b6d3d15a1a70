"""Environments in processes, which can be killed whatever they do.

A process plays one environment at a time, and the next when that is closed, so starting one is paid once. A call that
does not end in time leaves it in an unknown state: it is killed, with all that it has started, and another one takes
its place. At most `workers` are there; an episode waits for one, and for its start, before its first deadline begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from driftline.environment import Message, StepResult, Task
from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.process.groups import descendants

LOG = logging.getLogger(__name__)

MODULE = "driftline.rollout.environment_child"
LONGEST_LINE = 64 * 2**20
"""Bytes of one answer."""
START_DEADLINE_S = 300.0
"""For the imports of a family, on a machine where many processes start at a time."""
MOST_LEFT = 32
"""Processes that closed environments may have left in one process; with more it is ended, and they with it."""


class EnvironmentProcess:
    """One child; its calls come one after the other."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._answers = True

    @classmethod
    async def start(cls, family: str, longest: int) -> EnvironmentProcess:
        """Start a child for the environments of a family, which cuts messages to `longest` characters."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, family, str(longest),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True, limit=LONGEST_LINE,
        )  # fmt: skip
        return cls(child)

    @property
    def usable(self) -> bool:
        """Whether it is there, and has answered every call."""
        return self._answers and self._child.returncode is None

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have the child carry out a call. If it is cancelled, the child is killed.

        Raises:
            EnvironmentFailed: The environment raised, or the child ended.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if not self.usable:
            raise EnvironmentFailed(f"{request['call']}: the environment's process has ended")
        answered = False
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            await self._child.stdin.drain()
            line = await self._child.stdout.readline()
            answered = line.endswith(b"\n")
        except (ConnectionError, ValueError) as error:
            raise EnvironmentFailed(f"{request['call']}: the environment's process gave no answer: {error}") from None
        finally:
            if not answered:
                self.kill()
        if not answered:
            code = await self._child.wait()
            raise EnvironmentFailed(f"{request['call']}: the environment's process ended with exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EnvironmentFailed(answer["error"])
        return answer

    def kill(self) -> None:
        """Kill the child and all that it has started."""
        self._answers = False
        own = self._child.pid
        started = descendants(own) if self._child.returncode is None else []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(own, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self.kill()
        await self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()


class EnvironmentProcesses:
    """At most `workers` of them."""

    def __init__(self, family: str, workers: int, longest: int) -> None:
        self._family = family
        self._longest = longest
        self._free = asyncio.Semaphore(workers)
        self._idle: list[EnvironmentProcess] = []
        self._all: set[EnvironmentProcess] = set()

    async def take(self) -> EnvironmentProcess:
        """Wait for a process that is free; start one if none is idle, and wait until it has imported its family.

        Raises:
            EnvironmentFailed: It ended while it started, as where the family cannot be imported.
            DeadlineExceeded: It was not up within `START_DEADLINE_S`.
        """
        await self._free.acquire()
        try:
            while self._idle:
                process = self._idle.pop()
                if process.usable:
                    return process
                await self._discard(process)
            return await self._started()
        except BaseException:
            self._free.release()
            raise

    async def _started(self) -> EnvironmentProcess:
        process = await EnvironmentProcess.start(self._family, self._longest)
        self._all.add(process)
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await process.ask({"call": "start"})
        except BaseException as error:
            await self._discard(process)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"start: the environment's process was not up within {START_DEADLINE_S:g} s: see what "
                    f"{self._family} does when it is imported"
                ) from None
            raise
        return process

    async def give_back(self, process: EnvironmentProcess) -> None:
        """Give back one that was taken."""
        try:
            if process.usable:
                self._idle.append(process)
            else:
                await self._discard(process)
        finally:
            self._free.release()

    async def _discard(self, process: EnvironmentProcess) -> None:
        self._all.discard(process)
        await process.close()

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(process.close() for process in self._all))
        self._all.clear()
        self._idle.clear()


class ProcessEnvironment:
    """An environment in a process, as if it were here."""

    def __init__(self, process: EnvironmentProcess, processes: EnvironmentProcesses, max_turns: int) -> None:
        self._process = process
        self._processes = processes
        self._max_turns = max_turns
        self._begun = self._closed = False

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Make the environment, and start an episode."""
        self._begun = True
        answer = await self._process.ask(
            {
                "call": "reset",
                "max_turns": self._max_turns,
                "environment": task.environment,
                "payload": dict(task.payload),
                "seed": seed,
            }
        )
        return _messages(answer)

    async def step(self, action: str) -> StepResult:
        """Take one turn."""
        return await self.step_tokens((), action)

    async def step_tokens(self, token_ids: tuple[int, ...], text: str) -> StepResult:
        """Take one turn; an environment that takes no token ids is given the text alone."""
        return _result(await self._process.ask({"call": "step", "action": text, "token_ids": token_ids}))

    async def judge(self) -> StepResult:
        """Judge the episode as it stands; without a reward if the environment cannot."""
        return _result(await self._process.ask({"call": "judge"}))

    async def close(self) -> None:
        """Close the environment, and give the process back; one that does not answer is killed."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._begun and self._process.usable:
                left = (await self._process.ask({"call": "close"}))["left"]
                if left > MOST_LEFT:
                    LOG.warning("closed environments have left %d processes: all of them are killed", left)
                    self._process.kill()
        except EnvironmentFailed:
            self._process.kill()
            raise
        finally:
            await self._processes.give_back(self._process)


def _messages(answer: Mapping[str, Any]) -> tuple[Message, ...]:
    return tuple(
        Message(role, content, None if token_ids is None else tuple(token_ids))
        for role, content, token_ids in answer["messages"]
    )


def _result(answer: Mapping[str, Any]) -> StepResult:
    return StepResult(
        _messages(answer),
        answer["reward"],
        answer["terminated"],
        answer["truncated"],
        answer["success"],
        reward_parts=answer["reward_parts"],
    )
