"""The environment of one episode: its calls under their deadlines, where it lives, and what they took."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftline.environment import Environment, Message, StepResult, as_messages, judges, prescribes, takes_tokens
from driftline.errors import DeadlineExceeded, EnvironmentFailed
from driftline.rollout import assignment
from driftline.rollout.meters import BusyMeter, Interval
from driftline.rollout.pool import EnvironmentPool, Seat

if TYPE_CHECKING:
    from driftline.rollout.episode import EpisodeLimits, EpisodeSpec

LOG = logging.getLogger(__name__)


class PlayedEnvironment:
    """Takes a seat in the pool with `reset`, and gives it back with `close`; adds its steps to `intervals`."""

    def __init__(
        self,
        spec: EpisodeSpec,
        limits: EpisodeLimits,
        pool: EnvironmentPool,
        busy: BusyMeter,
        clock: Callable[[], float],
        intervals: list[Interval],
    ) -> None:
        self.turn_tokens: tuple[int, ...] | None = None
        """Tokens of each turn, where the environment prescribes them."""
        self.seconds = dict.fromkeys(("resetting", "in_tools", "in_reward"), 0.0)
        self._spec = spec
        self._limits = limits
        self._pool = pool
        self._busy = busy
        self._clock = clock
        self._intervals = intervals
        self._seat: Seat | None = None

    async def reset(self, *, on_ready: Callable[[], None] = lambda: None) -> tuple[Message, ...]:
        """Begin; returns the prompt.

        Args:
            on_ready: Called when there is a place where the environment can be made: what it takes from then on, it
                takes itself.

        Raises:
            EnvironmentFailed: It raised, returned something else than messages, or its process did not start.
            DeadlineExceeded: It took too long, or the start of its process did.
            LimitExceeded: Environments have blocked too many threads.
        """
        spec, limits, pool = self._spec, self._limits, self._pool
        seed = assignment.environment_seed(limits.seed, spec.group)
        seat = self._seat = pool.seat(spec.task_set)

        async def reset() -> tuple[Message, ...]:
            environment = seat.environment
            if environment is None:
                environment = seat.environment = pool.make(max_turns=limits.max_turns)
            if not prescribes(environment):
                return await environment.reset(spec.task, seed)
            start = await environment.prescribe(spec.task, seed, spec.member)
            self.turn_tokens = tuple(start.turn_tokens)
            return start.messages

        before = self._clock()
        try:
            await pool.ready(seat, max_turns=limits.max_turns)
            on_ready()
            return as_messages(await seat.host.call("reset", limits.step_deadline_s, reset), "reset")
        finally:
            self.seconds["resetting"] += _passed(before, self._clock())

    async def step(self, text: str, token_ids: tuple[int, ...] | None = None) -> StepResult:
        """Give it one turn: its text, or the ids that were sampled if it takes those and there are any.

        Raises:
            EnvironmentFailed: It raised, or returned something else.
            DeadlineExceeded: It took too long.
        """
        seat, environment = self._taken()
        step = partial(environment.step, text)
        if token_ids is not None and takes_tokens(environment):
            step = partial(environment.step_tokens, token_ids, text)
        start = self._busy.begin()
        try:
            result = await seat.host.call("step", self._limits.step_deadline_s, step)
        finally:
            end = self._busy.end()
            self._intervals.append((start, end))
        if not isinstance(result, StepResult):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EnvironmentFailed(f"step returned {type(result).__name__}: it must return a StepResult")
        self.seconds["in_tools" if result.reward is None else "in_reward"] += _passed(start, end)
        return result

    async def judge(self) -> StepResult | None:
        """Ask what the episode is worth as it stands; None if the environment cannot say.

        Raises:
            EnvironmentFailed: It raised, or returned something else.
            DeadlineExceeded: It took too long.
        """
        seat, environment = self._taken()
        if not judges(environment):
            return None
        before = self._clock()
        result = await seat.host.call("judge", self._limits.step_deadline_s, environment.judge)
        if not isinstance(result, StepResult):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise EnvironmentFailed(f"judge returned {type(result).__name__}: it must return a StepResult")
        self.seconds["in_reward"] += _passed(before, self._clock())
        return None if result.reward is None else result

    async def close(self, *, ended_by_itself: bool) -> None:
        """Give the seat back. An environment that does not close is left behind with a warning."""
        seat, self._seat = self._seat, None
        if seat is None:
            return
        try:
            await self._pool.leave(seat, ended_by_itself=ended_by_itself)
        except (EnvironmentFailed, DeadlineExceeded) as error:
            LOG.warning("group %d member %d: %s", self._spec.group, self._spec.member, error)

    def _taken(self) -> tuple[Seat, Environment]:
        assert self._seat is not None
        assert self._seat.environment is not None, "reset was not awaited"
        return self._seat, self._seat.environment


def _passed(before: float, now: float) -> float:
    """Seconds between two looks at a clock that may have been set back meanwhile."""
    return max(0.0, now - before)
