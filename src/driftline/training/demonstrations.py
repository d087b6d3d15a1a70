"""Episodes of a family's weak demonstrator, as token sequences to imitate."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from random import Random

from driftline.engine.tokens import Renderer
from driftline.environment import Message, Task, TaskFamily, at_most
from driftline.errors import ConfigurationError, EnvironmentFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode; `action_mask` is true where the demonstrator, not the environment, wrote the token."""

    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]


def record_demonstrations(
    family: TaskFamily, renderer: Renderer, *, seed: int, count: int, max_turns: int, max_tokens: int
) -> list[Demonstration]:
    """Play `count` episodes with the weak demonstrator; a pure function of its arguments.

    Where the family has not so many tasks, it plays those that it gives over and over, demonstrated anew each time.
    Episodes longer than `max_tokens` are left out.

    Raises:
        ConfigurationError: The family has no demonstrator, or gives no task.
        EnvironmentFailed: What is said cannot be rendered, or the environment fails.
    """
    rng = Random(f"demonstrations:{family.id}:{seed}")
    tasks = at_most("model.warm_start_steps", family, rng.getrandbits(63), count)
    if len(tasks) < count:
        log.info(
            "%s gives %d tasks, fewer than %d: they are demonstrated over and over", family.id, len(tasks), count
        )

    async def play_all() -> list[Demonstration]:
        return [await _play(family, renderer, tasks[number % len(tasks)], rng, max_turns) for number in range(count)]

    try:
        played = asyncio.run(play_all())
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"a demonstration of {family.id}: {error}") from error
    return [episode for episode in played if len(episode.token_ids) <= max_tokens]


async def _play(family: TaskFamily, renderer: Renderer, task: Task, rng: Random, max_turns: int) -> Demonstration:
    actions = family.demonstrate(task, rng)
    if actions is None:
        raise ConfigurationError(
            f"{family.id} has no demonstrations for a warm start: set model.source to directory or smollm2"
        )
    environment = family.make(max_turns=max_turns)
    try:
        ids = list(renderer.start(await environment.reset(task, seed=0)))
        mask = [False] * len(ids)
        for action in actions:
            turn = renderer.start([Message("assistant", action + family.stop)])
            ids += turn
            mask += [True] * len(turn)
            result = await environment.step(action)
            if result.terminated or result.truncated:
                break
            observation = renderer.extend(result.messages, stopped=True)
            ids += observation
            mask += [False] * len(observation)
        return Demonstration(tuple(ids), tuple(mask))
    finally:
        await environment.close()
