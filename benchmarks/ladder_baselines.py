"""The arms of the rollout ladder that stand for other ways of collecting: lockstep, and a barrier at each batch.

They are written as plainly as may be, and pay for nothing that Driftline's collector does besides: no store, no
claims, no leases, no ledger. Prompts, seeds, turns and tools are the same, request for request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftline.engine.protocol import Engine, GenerationRequest
from driftline.engine.tokens import Renderer
from driftline.environment import Task
from driftline.records import Trajectory
from driftline.rollout import assignment
from driftline.rollout.episode import Episode, EpisodeLimits, EpisodeResources, EpisodeSpec
from environments.trace_replay.replay import Replay

Interval = tuple[float, float]


@dataclass(slots=True)
class Delivered:
    """A member as an arm delivered it."""

    group: int
    member: int
    turns: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Sampled ids of each turn."""
    requests: list[Interval] = field(default_factory=list[Interval])
    """Unix seconds of its engine requests."""

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(map(len, self.turns))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sampled tokens of each turn."""
        return tuple(map(len, self.turns))


@dataclass(frozen=True, slots=True)
class Batches:
    """What is to be collected, in batches of groups."""

    tasks: Sequence[Task]
    """Of each group, by number."""
    group_size: int
    groups_a_batch: int

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """(group, member) of each batch."""
        for first in range(0, len(self.tasks), self.groups_a_batch):
            groups = range(first, min(first + self.groups_a_batch, len(self.tasks)))
            yield [(group, member) for group in groups for member in range(self.group_size)]


@dataclass(slots=True)
class _Lane:
    """One episode of a lockstep batch."""

    delivered: Delivered
    environment: Replay
    prescribed: tuple[int, ...] = ()
    context: list[int] = field(default_factory=list[int])

    @property
    def over(self) -> bool:
        return len(self.delivered.turns) == len(self.prescribed)


class Lockstep:
    """The whole batch generates a turn together; then all environments step."""

    def __init__(self, engine: Engine, renderer: Renderer, limits: EpisodeLimits, *, parallel: bool) -> None:
        """Describe it.

        Args:
            engine: Generates.
            renderer: Of the model.
            limits: Of the run.
            parallel: Whether environments step together, or one after the other.
        """
        self._engine, self._renderer, self._limits = engine, renderer, limits
        self._parallel = parallel

    async def batch(self, members: Sequence[tuple[int, int]], tasks: Sequence[Task]) -> list[Delivered]:
        """Play the members of one batch to their ends."""
        lanes = [_Lane(Delivered(*place), Replay(self._limits.max_turns)) for place in members]
        await self._all([self._reset(lane, tasks[lane.delivered.group]) for lane in lanes])
        while going := [lane for lane in lanes if not lane.over]:
            texts = await asyncio.gather(*(self._turn(lane) for lane in going))
            await self._all([self._step(lane, text) for lane, text in zip(going, texts, strict=True)])
        return [lane.delivered for lane in lanes]

    async def _all(self, calls: Sequence[Coroutine[Any, Any, None]]) -> None:
        if self._parallel:
            await asyncio.gather(*calls)
            return
        for call in calls:
            await call

    async def _reset(self, lane: _Lane, task: Task) -> None:
        seed = assignment.environment_seed(self._limits.seed, lane.delivered.group)
        begun = await lane.environment.prescribe(task, seed, lane.delivered.member)
        lane.prescribed = tuple(begun.turn_tokens)
        lane.context += self._renderer.start(begun.messages)

    async def _turn(self, lane: _Lane) -> str:
        done, began = lane.delivered, time.time()
        turn = len(done.turns)
        generation = await self._engine.generate(
            GenerationRequest(
                id=f"{done.group}.{done.member}/{turn}",
                prompt_ids=tuple(lane.context),
                max_tokens=lane.prescribed[turn],
                stop_ids=(),
                temperature=self._limits.temperature,
                seed=assignment.request_seed(self._limits.seed, done.group, done.member, turn),
                priority=done.group,
            )
        )
        done.requests.append((began, time.time()))
        done.turns.append(generation.token_ids)
        lane.context += generation.token_ids
        return self._renderer.text(generation.token_ids)

    async def _step(self, lane: _Lane, text: str) -> None:
        result = await lane.environment.step(text)
        if not result.terminated:
            lane.context += self._renderer.extend(result.messages, stopped=True)


class Barrier:
    """A coroutine for each episode, at most `slots` at once; the next batch begins when all have ended."""

    def __init__(self, resources: EpisodeResources, run: str, slots: int) -> None:
        self._resources, self._run = resources, run
        self._slots = asyncio.Semaphore(slots)

    async def batch(self, members: Sequence[tuple[int, int]], tasks: Sequence[Task]) -> list[Delivered]:
        """Play the members of one batch to their ends."""
        return await asyncio.gather(*(self._play(group, member, tasks[group]) for group, member in members))

    async def _play(self, group: int, member: int, task: Task) -> Delivered:
        spec = EpisodeSpec(self._run, "barrier", group, member, 1, task, "ladder", priority=group)
        async with self._slots:
            return delivered(await Episode(spec, self._resources).play())


def delivered(trajectory: Trajectory) -> Delivered:
    """A trajectory as what an arm delivered.

    Raises:
        RuntimeError: It failed: then arms did not do the same work.
    """
    if not trajectory.valid:
        raise RuntimeError(f"group {trajectory.group} member {trajectory.member}: {trajectory.reason}")
    found = Delivered(trajectory.group, trajectory.member, requests=list(trajectory.request_seconds[::2]))
    own = False
    for token, sampled in zip(trajectory.token_ids, trajectory.loss_mask, strict=True):
        if sampled and not own:
            found.turns.append(())
        if sampled:
            found.turns[-1] += (token,)
        own = sampled
    return found
