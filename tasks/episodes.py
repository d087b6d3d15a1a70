"""Playing an environment outside of a rollout: to see that it works, and that it accepts its own solutions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from driftline.environment import Task, TaskFamily
from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.params import RunParameters
from driftline.rollout.episode import EpisodeLimits, EpisodeSpec
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.rollout.played import PlayedEnvironment
from driftline.rollout.pool import EnvironmentPool


async def play(
    params: RunParameters, family: TaskFamily, task: Task, actions: Sequence[str], *, name: str = ""
) -> bool | None:
    """Reset an environment and take the actions, where a cell of the run would; returns the last one's success.

    Args:
        params: Of the run.
        family: Of the task; no mixture.
        task: To play.
        actions: Turns.
        name: Of the family, as `resolve` knows it; empty is `environment.id`.

    Raises:
        EnvironmentFailed: It raised, has no prompt, or did not answer within `environment.step_deadline_s`. The
            message names the environment and the task.
    """
    guard = EnvironmentGuard()
    pool = EnvironmentPool.of(params, family, guard, name=name)
    spec = EpisodeSpec("preflight", "preflight", 0, 0, 1, task, params.environment.task_set)
    environment = PlayedEnvironment(spec, EpisodeLimits.of(params), pool, BusyMeter(), time.time, [])
    try:
        with guard.installed():
            async with pool:
                try:
                    if not await environment.reset():
                        raise EnvironmentFailed("reset returned no message, so there is no prompt")
                    success: bool | None = None
                    for action in actions:
                        success = (await environment.step(action)).success
                    return success
                finally:
                    await environment.close(ended_by_itself=False)
    except (EnvironmentFailed, DeadlineExceeded) as error:
        raise EnvironmentFailed(f"environment {family.id}, task {task.id}: {error}") from error
