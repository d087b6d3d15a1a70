"""The child's side of an environment in a process: `python -m driftline.rollout.environment_child FAMILY`.

    stdin:  {"call": "reset", "max_turns": 20, "environment": ..., "payload": ..., "seed": 0}   one JSON object a line
    stdout: {"messages": [["user", "?ab", null]], ...}  or  {"error": "step raised ValueError: broken"}

A message is its role, its text, and its token ids or null. The first call is `start`, which is answered by `{}` once
the family is imported.

One environment at a time: `reset` makes it, `close` closes it, and the process goes on to the next. It ends when its
standard input does. What else prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from driftline.environment import (
    Environment,
    JudgingEnvironment,
    Message,
    PrescribingEnvironment,
    StepResult,
    Task,
    TaskFamily,
    resolve,
    takes_tokens,
)
from driftline.errors import EnvironmentFailed
from driftline.process.groups import descendants

LOOK_EVERY = 8
"""Episodes between two looks at what they have left behind: a look reads all of /proc, some milliseconds."""


class Served:
    """Answers the calls of one process."""

    def __init__(self, family: TaskFamily, longest: int) -> None:
        """Begin; messages are cut to `longest` characters, more than any context holds."""
        self._family = family
        self._longest = longest
        self._environment: Environment | None = None
        self._closed = 0

    async def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one call; what it raises is the answer, too."""
        calls: dict[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
            "start": self._start,
            "reset": self._reset,
            "step": self._step,
            "judge": self._judge,
            "close": self._close,
        }
        try:
            return await calls[request["call"]](request)
        except (Exception, SystemExit) as error:  # the policy: whatever an environment raises is told to the cell
            return {"error": f"{request['call']} raised {type(error).__name__}: {error}"[:2000]}

    async def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    async def _reset(self, request: Mapping[str, Any]) -> dict[str, Any]:
        environment = self._environment = self._family.make(max_turns=request["max_turns"])
        if isinstance(environment, PrescribingEnvironment):
            raise EnvironmentFailed(
                "environments that prescribe their turns cannot run in processes: set environment.runs_in to thread"
            )
        task = Task.create(request["environment"], request["payload"])
        return {"messages": self._told(await environment.reset(task, request["seed"]))}

    async def _step(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._environment is not None
        environment, text = self._environment, request["action"]
        if takes_tokens(environment):
            return self._result(await environment.step_tokens(tuple(request["token_ids"]), text), "step")
        return self._result(await environment.step(text), "step")

    async def _judge(self, request: Mapping[str, Any]) -> dict[str, Any]:
        environment = self._environment
        result = await environment.judge() if isinstance(environment, JudgingEnvironment) else StepResult()
        return self._result(result, "judge")

    async def _close(self, request: Mapping[str, Any]) -> dict[str, Any]:
        environment, self._environment = self._environment, None
        if environment is not None:
            await environment.close()
        self._closed += 1
        return {"left": len(descendants(os.getpid())) if self._closed % LOOK_EVERY == 0 else 0}

    def _result(self, result: StepResult, call: str) -> dict[str, Any]:
        if not isinstance(result, StepResult):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EnvironmentFailed(f"{call} returned {type(result).__name__}: it must return a StepResult")
        return {
            "messages": self._told(result.messages),
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "success": result.success,
            "reward_parts": dict(result.reward_parts),
        }

    def _told(self, messages: tuple[Message, ...]) -> list[list[Any]]:
        return [[one.role, one.content[: self._longest], one.token_ids] for one in messages]


async def serve(served: Served, requests: int, answers: int) -> None:
    """Answer what arrives at one file descriptor at the other, until it ends. The loop runs on between the calls."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "requests") as reader, os.fdopen(requests, "rb") as arriving:
        while line := await loop.run_in_executor(reader, arriving.readline):
            told = json.dumps(await served.answer(json.loads(line))).encode() + b"\n"
            while told:
                told = told[os.write(answers, told) :]


def main() -> None:
    """Read the command line, and serve."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 (a device)
        os.dup2(nothing.fileno(), 0)
    name, longest = sys.argv[1:]
    asyncio.run(serve(Served(resolve(name), int(longest)), requests, answers))


if __name__ == "__main__":
    main()
