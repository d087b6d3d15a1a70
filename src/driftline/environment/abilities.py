"""What an environment or a family may say beyond the contract: small protocols that nobody has to implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from driftline.environment.contract import Environment, Message, StepResult, Task

Placement = Literal["loop", "thread", "process"]
"""Where an environment's code runs: in the event loop of the cell, in a thread with a loop of its own among other
environments, or alone in a process, which can be killed."""

Snapshot = bytes | str | int | float | bool | None | list[Any] | dict[str, Any]
"""Bytes of the environment's own making, or a JSON value. Never a pickle: snapshots may come from elsewhere."""


@dataclass(frozen=True, slots=True)
class Prescription:
    """How an episode begins whose turns have prescribed lengths."""

    messages: tuple[Message, ...]
    """The prompt, as `reset` returns it."""
    turn_tokens: tuple[int, ...]
    """Tokens of each turn of the policy: it samples exactly so many, and what ends a turn otherwise does not."""


@runtime_checkable
class PrescribingEnvironment(Environment, Protocol):
    """An environment that says beforehand how many tokens the policy samples in each turn.

    Whoever plays an episode calls `prescribe` instead of `reset`. A turn that is longer than
    `rollout.max_tokens_per_turn`, or finds no room in the context, fails the episode: nothing is cut short. After
    such a turn the observation follows at once, without an end of turn between them.
    """

    async def prescribe(self, task: Task, seed: int, member: int) -> Prescription:
        """Start the episode of a group's `member`; equal arguments give an equal episode.

        Raises:
            EnvironmentFailed: There is none for that member.
        """
        ...


@runtime_checkable
class ReusableEnvironment(Environment, Protocol):
    """An environment that is kept for another episode, since making one is expensive."""

    async def recycle(self) -> bool:
        """Forget the episode that has ended, whatever it left; called in place of `close`, before the next `reset`.

        Returns:
            False if something might be left. It is closed then.
        """
        ...


@runtime_checkable
class JudgingEnvironment(Environment, Protocol):
    """An environment that can say what an unfinished episode is worth."""

    async def judge(self) -> StepResult:
        """Judge the episode as it stands: its time has run out, and no step follows.

        Called with `environment.at_deadline: judge`, and never amid a step. Without a reward in what it returns,
        nothing is known of the episode, and it does not count.
        """
        ...


@runtime_checkable
class PlacedFamily(Protocol):
    """A family that says where its environments run. Without it, that is a thread.

    `loop` is for environments that neither block nor compute for more than some microseconds; `process` for those
    that may block for ever, leak memory or start processes.
    """

    @property
    def runs_in(self) -> Placement:
        """Where they run."""
        ...


@runtime_checkable
class TokenEnvironment(Environment, Protocol):
    """An environment that takes turns as the token ids that were sampled; it answers in `Message.token_ids`."""

    async def step_tokens(self, token_ids: tuple[int, ...], text: str) -> StepResult:
        """Called in place of `step`: the ids of one turn, what ended it included, and their text without that."""
        ...


@runtime_checkable
class SnapshotEnvironment(Environment, Protocol):
    """An environment that can be taken up amid an episode."""

    async def snapshot(self) -> Snapshot:
        """The whole state of the episode beyond its task, turns left and state of chance included.

        Called between two steps. What comes later does not change a snapshot.
        """
        ...

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Called in place of `reset`: be where an episode of `task` was when the snapshot was taken.

        Any environment of the family may be given it, one that has played before as well, in another process too;
        bytes come back as bytes, JSON values as `json.loads` returns them.

        Raises:
            EnvironmentFailed: It is no snapshot of this family's.
        """
        ...


@runtime_checkable
class GradedFamily(Protocol):
    """A family whose tasks come in levels of difficulty, as in a curriculum."""

    @property
    def levels(self) -> int:
        """How many; 0 is the easiest."""
        ...

    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        """Return `count` distinct tasks of one level; a pure function of its arguments.

        Raises:
            ConfigurationError: There is no such level, or it has not so many tasks.
        """
        ...

    def level_of(self, task: Task) -> int | None:
        """The level of one of its tasks; None for one that `generate` drew from no level."""
        ...


@runtime_checkable
class ToolFamily(Protocol):
    """A family whose policy calls tools: a chat template shows their schemas to the model in its own way."""

    @property
    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """As `Toolbox.schemas`."""
        ...


def tool_schemas(family: object) -> Sequence[Mapping[str, Any]]:
    """The schemas of a family's tools; none if it is no `ToolFamily`."""
    return family.tool_schemas if isinstance(family, ToolFamily) else ()


def prescribes(environment: Environment) -> TypeGuard[PrescribingEnvironment]:
    """Whether it is a `PrescribingEnvironment`; like the next ones, for every episode: it costs nothing."""
    return _has(type(environment), "prescribe")


def reusable(environment: Environment) -> TypeGuard[ReusableEnvironment]:
    """Whether it is a `ReusableEnvironment`."""
    return _has(type(environment), "recycle")


def judges(environment: Environment) -> TypeGuard[JudgingEnvironment]:
    """Whether it is a `JudgingEnvironment`."""
    return _has(type(environment), "judge")


def takes_tokens(environment: Environment) -> TypeGuard[TokenEnvironment]:
    """Whether it is a `TokenEnvironment`."""
    return _has(type(environment), "step_tokens")


def snapshots(environment: Environment) -> TypeGuard[SnapshotEnvironment]:
    """Whether it is a `SnapshotEnvironment`."""
    return _has(type(environment), "snapshot") and _has(type(environment), "restore")


@cache
def _has(kind: type, method: str) -> bool:
    return callable(getattr(kind, method, None))
