"""Where a cell's environments live: which thread or process plays one, and which are kept warm for the next episode.

| placement | a step costs | one that blocks for ever costs |
|---|---|---|
| loop | microseconds | all of the cell, for its deadline |
| thread | a hop to the thread and back | its thread and the environments in it, `limits.lost_threads` times |
| process | a message to the process and back | its process, which is killed |

A family says which it is (`PlacedFamily`), `environment.runs_in` may say otherwise. An environment that can be reused
(`ReusableEnvironment`) is, if its episode ended by itself: it goes back to where it was made. Those of one task set
are not given to episodes of another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from driftline.environment import Environment, PlacedFamily, Placement, TaskFamily, reusable
from driftline.errors import ConfigurationError, DeadlineExceeded, EnvironmentFailed, LimitExceeded
from driftline.params import RunParameters
from driftline.rollout.guard import GRACE_S, EnvironmentGuard
from driftline.rollout.processes import EnvironmentProcesses, ProcessEnvironment
from driftline.rollout.threads import EnvironmentThread, Warden

LOG = logging.getLogger(__name__)

CLOSE_DEADLINE_S = 5.0
CHARACTERS_A_TOKEN = 512
"""No tokenizer has a token of more: what is longer than a context of those finds no room in it, whatever it says."""
LONGEST = 2**22

T = TypeVar("T")


class Host(Protocol):
    """Awaits the methods of environments, wherever they run: `EnvironmentGuard.call`."""

    async def call(self, what: str, deadline_s: float, method: Callable[[], Awaitable[T]]) -> T:
        """Await `method()` there."""
        ...


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one episode's environment."""

    host: Host
    task_set: str
    environment: Environment | None = None
    """A warm one at first, or None; whoever makes one puts it here."""


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """What became of threads and environments since the start."""

    threads_lost: int
    """At this moment: those that environments hold beyond all deadlines."""
    made: int
    reused: int


def placement_of(family: TaskFamily, runs_in: str) -> Placement:
    """Where a family's environments run."""
    if runs_in == "declared":
        return family.runs_in if isinstance(family, PlacedFamily) else "thread"
    assert runs_in in ("loop", "thread", "process")
    return runs_in


class EnvironmentPool:
    """Hands out seats. An asynchronous context; its threads start when they are needed."""

    def __init__(
        self,
        family: TaskFamily,
        guard: EnvironmentGuard,
        *,
        placement: Placement,
        workers: int = 4,
        warm: int = 0,
        lost_threads: int = 8,
        grace_s: float = GRACE_S,
        name: str = "",
        longest: int = LONGEST,
    ) -> None:
        """Begin.

        Args:
            family: Makes the environments.
            guard: Awaits those that run in the loop.
            placement: Where they run.
            workers: Threads that they share, or most processes.
            warm: Most environments that are kept for another episode.
            lost_threads: Most threads that may be lost at one time.
            grace_s: How long an environment may clean up after its deadline.
            name: Of the family, as `resolve` knows it; for processes.
            longest: Characters beyond which no message need leave its process.
        """
        if placement == "process" and not name:
            raise ConfigurationError("environments in processes need a family that can be named: environment.id")
        self._family = family
        self._guard = guard
        self._placement = placement
        self._workers = workers
        self._warm_limit = warm
        self._lost_limit = lost_threads
        self._grace_s = grace_s
        self._threads: list[EnvironmentThread] = []
        self._lost: list[EnvironmentThread] = []
        self._begun = 0
        self._warden: Warden | None = None
        self._processes: EnvironmentProcesses | None = None
        self._name, self._longest = name, longest
        self._warm: list[Seat] = []
        self._made = self._reused = 0

    @classmethod
    def of(
        cls, parameters: RunParameters, family: TaskFamily, guard: EnvironmentGuard, *, name: str = ""
    ) -> EnvironmentPool:
        """The pool that a run's parameters name; `name` is the family's, where that is not `environment.id`."""
        environment = parameters.environment
        return cls(
            family,
            guard,
            placement=placement_of(family, environment.runs_in),
            workers=environment.workers,
            warm=environment.warm,
            lost_threads=parameters.limits.lost_threads,
            grace_s=guard.grace_s,
            name=name or environment.id,
            longest=parameters.engine.max_model_len * CHARACTERS_A_TOKEN + 1,
        )

    async def __aenter__(self) -> Self:
        """Be ready."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the environments that are warm, and end the threads."""
        warm, self._warm = self._warm, []
        await asyncio.gather(*(self._close_warm(seat) for seat in warm))
        if self._warden is not None:
            self._warden.close()
        await asyncio.gather(*(thread.close() for thread in self._threads))
        if self._processes is not None:
            await self._processes.close()

    @property
    def figures(self) -> PoolFigures:
        """Threads and environments so far."""
        return PoolFigures(sum(thread.alive for thread in self._lost), self._made, self._reused)

    def seat(self, task_set: str) -> Seat:
        """A place for an episode's environment, with a warm one if there is one.

        Raises:
            LimitExceeded: Too many threads are lost to environments that block.
        """
        for seat in reversed(self._warm):
            if seat.task_set == task_set and not _is_lost(seat.host):
                self._warm.remove(seat)
                self._reused += 1
                return seat
        self._made += 1
        if self._placement != "thread":
            return Seat(self._guard, task_set)
        thread = self._thread()
        thread.environments += 1
        return Seat(thread, task_set)

    async def ready(self, seat: Seat, *, max_turns: int) -> None:
        """Wait until the seat's environment can be made, or is there. No deadline of the environment runs yet."""
        if self._placement == "process" and seat.environment is None:
            if self._processes is None:
                self._processes = EnvironmentProcesses(self._name, self._workers, self._longest)
            seat.environment = ProcessEnvironment(await self._processes.take(), self._processes, max_turns)

    def make(self, *, max_turns: int) -> Environment:
        """Make an environment; called where the seat is."""
        return self._family.make(max_turns=max_turns)

    async def leave(self, seat: Seat, *, ended_by_itself: bool) -> None:
        """Give a seat back.

        Args:
            seat: Where the episode was played.
            ended_by_itself: Whether the episode did, so that its environment may play another one.

        Raises:
            EnvironmentFailed: The environment did not close.
            DeadlineExceeded: It took too long.
        """
        kept = False
        try:
            if seat.environment is not None:
                kept = ended_by_itself and await self._keep(seat)
        finally:
            if not kept:
                await self._close(seat)

    async def _keep(self, seat: Seat) -> bool:
        environment = seat.environment
        if environment is None or not reusable(environment) or self._warm_limit == 0 or _is_lost(seat.host):
            return False
        await self._make_room(seat.task_set)
        if len(self._warm) >= self._warm_limit:
            return False
        try:
            if not await seat.host.call("recycle", CLOSE_DEADLINE_S, environment.recycle):
                return False
        except (EnvironmentFailed, DeadlineExceeded) as error:
            LOG.warning("an environment cannot be used again: %s", error)
            return False
        if len(self._warm) >= self._warm_limit:
            return False
        self._warm.append(seat)
        return True

    async def _make_room(self, task_set: str) -> None:
        """Close those that are warm for a task set that is no longer played."""
        if len(self._warm) >= self._warm_limit:
            other = next((seat for seat in self._warm if seat.task_set != task_set), None)
            if other is not None:
                self._warm.remove(other)
                await self._close_warm(other)

    async def _close_warm(self, seat: Seat) -> None:
        try:
            await self._close(seat)
        except (EnvironmentFailed, DeadlineExceeded) as error:
            LOG.warning("a warm environment did not close: %s", error)

    async def _close(self, seat: Seat) -> None:
        environment, seat.environment = seat.environment, None
        try:
            if environment is not None:
                await seat.host.call("close", CLOSE_DEADLINE_S, environment.close)
        finally:
            if isinstance(seat.host, EnvironmentThread):
                seat.host.environments -= 1

    # ---- threads

    def _thread(self) -> EnvironmentThread:
        """The thread with the fewest environments that nothing holds; a new one as long as there may be more."""
        lost = self.figures.threads_lost
        if lost > self._lost_limit:
            raise LimitExceeded(
                f"{lost} threads are blocked by environments beyond their deadline (limits.lost_threads allows "
                f"{self._lost_limit}): set environment.runs_in to process, where what blocks is killed"
            )
        if self._warden is None:
            self._warden = Warden(asyncio.get_running_loop(), lambda: tuple(self._threads), self._on_lost)
        idle = [thread for thread in self._threads if thread.environments == 0 and not thread.held_s]
        if not idle and len(self._threads) < self._workers:
            self._begun += 1
            thread = EnvironmentThread(
                f"environments-{self._begun}", asyncio.get_running_loop(), grace_s=self._grace_s
            )
            self._threads.append(thread)
            return thread
        return min(self._threads, key=lambda thread: (thread.held_s > HELD_LONG_S, thread.environments))

    def _on_lost(self, thread: EnvironmentThread) -> None:
        LOG.error(
            "%s is lost: an environment blocks it beyond its deadline; %d environments were in it",
            thread.name, thread.environments,
        )  # fmt: skip
        self._threads.remove(thread)
        self._lost = [one for one in self._lost if one.alive] + [thread]
        self._warm = [seat for seat in self._warm if seat.host is not thread]
        thread.give_up()


HELD_LONG_S = 0.05
"""A thread that is held longer gets no new environment if another one can."""


def _is_lost(host: Any) -> bool:
    return isinstance(host, EnvironmentThread) and host.lost
