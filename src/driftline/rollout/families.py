"""What the episodes of a process are played with: for each family of a mixture its own pool and rendering."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from driftline.engine.protocol import Engine
from driftline.engine.tokens import Renderer
from driftline.environment import TaskFamily, parts_of, tool_schemas
from driftline.params import RunParameters
from driftline.rollout.episode import EpisodeLimits, EpisodeResources
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.rollout.pool import EnvironmentPool, PoolFigures


class PlayedFamilies:
    """The pools of a run's families; an asynchronous context. `resources` is what episodes take."""

    def __init__(
        self,
        parameters: RunParameters,
        family: TaskFamily,
        engine: Engine,
        renderer: Renderer,
        guard: EnvironmentGuard,
        busy: BusyMeter,
        limits: EpisodeLimits | None = None,
    ) -> None:
        """Begin; nothing is started.

        Args:
            parameters: Of the run.
            family: Of the run: one, or a mixture.
            engine: Generates.
            renderer: Of the run's model, for `family`.
            guard: Awaits environments that run in the event loop.
            busy: Counts tools at work.
            limits: Of each episode; None is what the parameters say.
        """
        limits = limits or EpisodeLimits.of(parameters)
        parts = parts_of(family, parameters.environment.id)
        self._pools = {
            part.family.id: EnvironmentPool.of(parameters, part.family, guard, name=part.name) for part in parts
        }
        if len(parts) == 1:
            pool = self._pools[parts[0].family.id]
            self.resources = EpisodeResources(parts[0].family, engine, renderer, limits, guard, busy, pool=pool)
        else:
            shared = EpisodeResources(family, engine, renderer, limits, guard, busy)
            by_environment = {
                part.family.id: replace(
                    shared,
                    family=part.family,
                    renderer=renderer.speaking(stop=part.family.stop, tools=tool_schemas(part.family)),
                    pool=self._pools[part.family.id],
                )
                for part in parts
            }
            self.resources = replace(shared, by_environment=by_environment)
        self._stack = AsyncExitStack()

    @property
    def figures(self) -> PoolFigures:
        """Threads and environments of all pools so far."""
        found = [pool.figures for pool in self._pools.values()]
        return PoolFigures(
            sum(one.threads_lost for one in found), sum(one.made for one in found), sum(one.reused for one in found)
        )

    async def __aenter__(self) -> Self:
        """Be ready."""
        for pool in self._pools.values():
            await self._stack.enter_async_context(pool)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the environments that are warm, and end threads and processes."""
        await self._stack.aclose()
