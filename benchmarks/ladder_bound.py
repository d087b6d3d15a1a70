"""What no way of collecting a trace can be quicker than, on a given engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftline.engine.protocol import Engine, GenerationRequest
from driftline.environment import Task
from driftline.rollout.episode import Episode, EpisodeResources, EpisodeSpec

TOKENS = 48
ROUNDS = 3
LONGEST = 3


@dataclass(frozen=True, slots=True)
class Bound:
    """The larger of `tokens_s` and `longest_s`."""

    throughput: float
    """Tokens a second, the best of some rounds with all slots taken by long requests."""
    tokens_s: float
    """All tokens of the trace at that throughput."""
    longest_s: float
    """The longest episode alone."""
    requests_s: float
    """All requests of the trace, without tools, at best: what the engine takes for requests this short."""

    @property
    def seconds(self) -> float:
        """The bound."""
        return max(self.tokens_s, self.longest_s)


async def measure_bound(engine: Engine, resources: EpisodeResources, tasks: Sequence[Task], *, slots: int) -> Bound:
    """Measure it on an engine that is otherwise idle."""
    tokens = sum(sum(shape["sampled_tokens"]) for task in tasks for shape in task.payload["members"])
    throughput = max([await long_requests(engine, slots, number) for number in range(ROUNDS)])
    longest_s = max([await _alone(resources, task, member) for task, member in _longest(tasks)])
    requests_s = min([await without_tools(resources, tasks, slots) for _ in range(ROUNDS)])
    return Bound(throughput, tokens / throughput, longest_s, requests_s)


async def long_requests(engine: Engine, slots: int, number: int) -> float:
    """Tokens a second of as many long requests as there are slots; `number` sets their seeds."""
    requests = [
        GenerationRequest(f"bound/{number}.{slot}", (slot % 10 + 2, 3), TOKENS, (), 1.0, number * slots + slot)
        for slot in range(slots)
    ]
    began = time.monotonic()
    await asyncio.gather(*(engine.generate(request) for request in requests))
    return slots * TOKENS / (time.monotonic() - began)


def _longest(tasks: Sequence[Task]) -> list[tuple[Task, int]]:
    """The episodes that may be the longest: most turns, and most seconds in tools."""
    places = [(task, member) for task in tasks for member in range(len(task.payload["members"]))]

    def shape(place: tuple[Task, int]) -> dict[str, list[float]]:
        return place[0].payload["members"][place[1]]

    by_tokens = sorted(places, key=lambda place: -sum(shape(place)["sampled_tokens"]))[:LONGEST]
    by_tools = sorted(places, key=lambda place: -sum(shape(place)["tool_seconds"]))[:LONGEST]
    return by_tokens + by_tools


async def _alone(resources: EpisodeResources, task: Task, member: int) -> float:
    """Seconds of one episode that has the engine for itself."""
    began = time.monotonic()
    await Episode(EpisodeSpec("bound", "bound", 0, member, 1, task, "bound"), resources).play()
    return time.monotonic() - began


async def without_tools(resources: EpisodeResources, tasks: Sequence[Task], slots: int) -> float:
    """Seconds of all episodes, `slots` at once, if tools took no time."""
    free = asyncio.Semaphore(slots)

    async def play(group: int, member: int, task: Task) -> None:
        async with free:
            await Episode(EpisodeSpec("bound", "bound", group, member, 1, task, "bound"), resources).play()

    quick = [replace(task, payload=_without_seconds(task)) for task in tasks]
    places = [
        (group, member, task) for group, task in enumerate(quick) for member in range(len(task.payload["members"]))
    ]
    began = time.monotonic()
    await asyncio.gather(*(play(*place) for place in places))
    return time.monotonic() - began


def _without_seconds(task: Task) -> dict[str, object]:
    members = [
        shape | {"tool_seconds": [0.0] * len(shape["tool_seconds"]), "reset_seconds": 0.0, "reward_seconds": 0.0}
        for shape in task.payload["members"]
    ]
    return {**task.payload, "members": members}
