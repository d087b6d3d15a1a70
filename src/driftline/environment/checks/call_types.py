"""The first check: whether `reset` and `step` can be awaited, and return what they must. Nothing works without."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from typing import Any, cast

from driftline.environment.abilities import prescribes
from driftline.environment.checks.findings import Broken, Case, ensure, short
from driftline.environment.checks.playing import MAX_TURNS, RAISED, actions_for, in_a_loop
from driftline.environment.contract import Environment, Message, StepResult


def answers(case: Case) -> None:
    """Raise `Broken` for a wrong type alone; what raises or hangs is found and told by the other checks."""
    try:
        in_a_loop(_answers(case))
    except Broken:
        raise
    except RAISED:  # the policy: whatever an environment raises is a finding of the checks that follow
        return


async def _answers(case: Case) -> None:
    environment: Environment = case.family.make(max_turns=MAX_TURNS)
    try:
        if prescribes(environment):
            return
        task = case.tasks[0]
        action = actions_for(case, task)[0]
        async with asyncio.timeout(case.deadline_s):
            _prompt(await _awaited("reset", environment.reset(task, case.seed)))
            result = await _awaited("step", environment.step(action))
        ensure(isinstance(result, StepResult), f"step returned {_kind(result)}: {short(result, 60)}")
    finally:
        await environment.close()


async def _awaited(call: str, answer: object) -> object:
    ensure(inspect.isawaitable(answer), f"{call} is a plain function: it returned {_kind(answer)} without an await")
    return await cast(Awaitable[Any], answer)


def _prompt(prompt: object) -> None:
    kind = _kind(prompt)
    ensure(isinstance(prompt, Sequence) and not isinstance(prompt, str), f"reset returned {kind}")
    messages = cast(Sequence[object], prompt)
    ensure(bool(messages), "reset returned no message, so there is no prompt")
    wrong = next((one for one in messages if not isinstance(one, Message)), None)
    ensure(wrong is None, f"reset returned {_kind(wrong)} among its messages")


def _kind(value: object) -> str:
    return type(value).__name__
