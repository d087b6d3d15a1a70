"""Playing episodes as the checks do: in an event loop of their own, to a record that can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from driftline.environment.abilities import prescribes
from driftline.environment.checks.findings import Broken, Case
from driftline.environment.contract import Environment, Message, StepResult, Task

MAX_TURNS = 1000
"""More than any oracle takes."""
IDLE_ACTIONS = ("", "I do not know.")
"""What a policy says that does nothing."""
FALLBACK_TURNS = 3

RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""What an environment raises. The last two would end whoever plays it as if it had been asked to."""

T = TypeVar("T")
Said = dict[str, Any]
"""The prompt or one turn, as JSON values."""


def in_a_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a new event loop. Threads that are held are left behind: nothing waits for them for ever."""
    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor(thread_name_prefix="driftline-check")
    loop.set_default_executor(executor)
    try:
        return loop.run_until_complete(main)
    finally:
        _end_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        executor.shutdown(wait=False, cancel_futures=True)
        loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=1.0))


def actions_for(case: Case, task: Task) -> list[str]:
    """An oracle's actions, or a demonstrator's, or a few that mean nothing."""
    actions = case.family.oracle(task) or case.family.demonstrate(task, Random(case.seed))
    return list(actions) if actions else ["?"] * FALLBACK_TURNS


async def begin(case: Case, environment: Environment, task: Task) -> tuple[Said, int | None]:
    """Start an episode: what the prompt says, and how many turns are prescribed, if they are."""
    async with asyncio.timeout(case.deadline_s):
        if not prescribes(environment):
            return {"messages": told(await environment.reset(task, case.seed))}, None
        prescription = await environment.prescribe(task, case.seed, 0)
    lengths = list(prescription.turn_tokens)
    return {"messages": told(prescription.messages), "turn_tokens": lengths}, len(lengths)


async def go_on(case: Case, environment: Environment, actions: Sequence[str]) -> list[Said]:
    """Take turns until the episode has ended, or the actions are used up."""
    said: list[Said] = []
    for action in actions:
        said.append(await take(case, environment, action))
        if ended(said[-1]):
            break
    return said


async def take(case: Case, environment: Environment, action: str) -> Said:
    """One turn."""
    async with asyncio.timeout(case.deadline_s):
        result = await environment.step(action)
    if not isinstance(result, StepResult):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Broken(f"step returned {type(result).__name__}: it must return a StepResult")
    return {
        "messages": told(result.messages),
        "reward": result.reward,
        "reward_parts": dict(result.reward_parts),
        "terminated": result.terminated,
        "truncated": result.truncated,
        "success": result.success,
    }


async def play(case: Case, task: Task, actions: Sequence[str], *, max_turns: int = MAX_TURNS) -> list[Said]:
    """A whole episode in an environment of its own: the prompt, then every turn."""
    environment = case.family.make(max_turns=max_turns)
    try:
        return await play_in(case, environment, task, actions)
    finally:
        await environment.close()


async def play_in(case: Case, environment: Environment, task: Task, actions: Sequence[str]) -> list[Said]:
    """A whole episode in this environment; it is not closed."""
    prompt, prescribed = await begin(case, environment, task)
    turns = list(actions) if prescribed is None else ["0"] * prescribed
    return [prompt, *await go_on(case, environment, turns)]


def ended(said: Said) -> bool:
    """Whether a turn was the last one."""
    return bool(said.get("terminated") or said.get("truncated"))


def told(messages: Sequence[Message]) -> list[list[Any]]:
    """Messages as JSON values."""
    return [
        [one.role, one.content, *([list(one.token_ids)] if one.token_ids is not None else [])] for one in messages
    ]
