"""Playing proposals in the ways that `driftline.refresh.validating` judges: oracle, no-op, another's answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from driftline.environment import Environment, Message, StepResult, Task, TaskFamily
from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.refresh import validating
from driftline.refresh.validating import REPEATS, Attempt, AttemptKind, Failure, Validation
from driftline.rollout.guard import EnvironmentGuard

PLAYERS = 4
"""Attempts under way at the same time: environments that wait for something do so side by side."""
ORACLE_TURNS = 1000
NO_OP_TURNS = 8
LONGEST_ERROR = 500
"""Characters of what was raised that are kept as evidence."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    task: Task
    kind: AttemptKind
    actions: Sequence[str]
    max_turns: int


async def validate(family: TaskFamily, tasks: Sequence[Task], *, deadline_s: float) -> Validation:
    """Play each task in all ways, and judge it.

    What the environment does wrong is no error here: it is in the verdicts. Tasks that were drawn together lend each
    other their answers.

    Args:
        family: Of the tasks.
        tasks: Proposals, in order.
        deadline_s: Of a reset or a step, in seconds.
    """
    solutions, found = await asyncio.to_thread(_solutions, family, tasks)
    guard = EnvironmentGuard()
    wanted = iter(_wanted(tasks, solutions))

    async def play_all() -> None:
        for one in wanted:
            found[one.task.id].append(await _attempt(family, guard, one, deadline_s))
            await asyncio.sleep(0)

    with guard.installed():
        async with asyncio.TaskGroup() as group:
            for _ in range(PLAYERS):
                group.create_task(play_all())
    return validating.summarise({task_id: _ordered(attempts) for task_id, attempts in found.items()})


def _solutions(
    family: TaskFamily, tasks: Sequence[Task]
) -> tuple[dict[str, Sequence[str] | None], dict[str, list[Attempt]]]:
    """The oracle's actions by task, None without one; and attempts, of which there is one where that fails."""
    solutions: dict[str, Sequence[str] | None] = {}
    attempts: dict[str, list[Attempt]] = {task.id: [] for task in tasks}
    for task in tasks:
        try:
            solutions[task.id] = family.oracle(task)
        except Exception as error:  # the policy: whatever an oracle raises is evidence against its task
            told = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
            attempts[task.id].append(Attempt("oracle", None, None, "", "environment", told))
    return solutions, attempts


def _wanted(tasks: Sequence[Task], solutions: Mapping[str, Sequence[str] | None]) -> Iterator[_Wanted]:
    others = validating.others_answers(solutions)
    for task in tasks:
        if task.id not in solutions:
            continue
        actions = solutions[task.id]
        kind: AttemptKind = "reset" if actions is None else "oracle"
        for _ in range(REPEATS):
            yield _Wanted(task, kind, actions or (), ORACLE_TURNS)
        if actions is not None:
            yield _Wanted(task, "no-op", [""] * NO_OP_TURNS, NO_OP_TURNS)
        if task.id in others:
            yield _Wanted(task, "shuffled", others[task.id], ORACLE_TURNS)


async def _attempt(family: TaskFamily, guard: EnvironmentGuard, wanted: _Wanted, deadline_s: float) -> Attempt:
    digest = hashlib.sha256()
    success: bool | None = None
    reward: float | None = None
    failure: Failure = ""
    message = ""
    try:
        environment = family.make(max_turns=wanted.max_turns)
        try:
            result = await _play(environment, guard, wanted, deadline_s, digest)
            if result is not None:
                success, reward = result.success, result.reward
        finally:
            with contextlib.suppress(DeadlineExceeded):
                await guard.call("close", deadline_s, environment.close)
    except DeadlineExceeded as error:
        failure, message = "timeout", str(error)
    except Exception as error:  # the policy: whatever an environment raises is evidence against its task
        failure, message = "environment", str(error)
    if failure:
        return Attempt(wanted.kind, None, None, "", failure, message[:LONGEST_ERROR])
    return Attempt(wanted.kind, success, reward, digest.hexdigest()[:16])


async def _play(
    environment: Environment, guard: EnvironmentGuard, wanted: _Wanted, deadline_s: float, digest: hashlib._Hash
) -> StepResult | None:
    """Reset, take the actions, stop where the episode ends; returns the last result, and digests all of them."""
    prompt = await guard.call("reset", deadline_s, lambda: environment.reset(wanted.task, 0))
    if not prompt:
        raise EnvironmentFailed("reset returned no message, so there is no prompt")
    _note(digest, prompt)
    result: StepResult | None = None
    for action in wanted.actions:
        result = await guard.call("step", deadline_s, lambda action=action: environment.step(action))
        _note(digest, result.messages, result)
        if result.terminated or result.truncated:
            break
    return result


def _note(digest: hashlib._Hash, messages: Sequence[Message], result: StepResult | None = None) -> None:
    answered = [[message.role, message.content] for message in messages]
    ended = result and [result.reward, result.success, result.terminated, result.truncated]
    digest.update(json.dumps([answered, ended]).encode())


def _ordered(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts in the order of the table, whichever ended first."""
    order: Mapping[AttemptKind, int] = {"oracle": 0, "reset": 0, "no-op": 1, "shuffled": 2}
    return sorted(attempts, key=lambda attempt: order[attempt.kind])
