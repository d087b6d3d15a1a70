"""Playing an environment outside of a rollout: to see that it works, and that it accepts its own solutions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from driftline.environment import Task, TaskFamily
from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.rollout.guard import EnvironmentGuard


async def play(
    family: TaskFamily, task: Task, actions: Sequence[str], *, max_turns: int, deadline_s: float
) -> bool | None:
    """Reset an environment and take the actions; returns the success that the last one led to.

    Raises:
        EnvironmentFailed: It raised, has no prompt, or did not answer within `deadline_s`. The message names the
            environment and the task.
    """
    guard = EnvironmentGuard()
    try:
        with guard.installed():
            environment = family.make(max_turns=max_turns)
            try:
                prompt = await guard.call("reset", deadline_s, lambda: environment.reset(task, 0))
                if not prompt:
                    raise EnvironmentFailed("reset returned no message, so there is no prompt")
                success: bool | None = None
                for action in actions:
                    result = await guard.call("step", deadline_s, lambda action=action: environment.step(action))
                    success = result.success
                return success
            finally:
                with contextlib.suppress(DeadlineExceeded):
                    await guard.call("close", deadline_s, environment.close)
    except (EnvironmentFailed, DeadlineExceeded) as error:
        raise EnvironmentFailed(f"environment {family.id}, task {task.id}: {error}") from error
