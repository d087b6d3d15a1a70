"""The environment contract: what a family of tasks offers, and how it is found.

A *family* (`TaskFamily`, versioned id `name/v1`) generates tasks and makes environments. An environment plays
one episode at a time, in messages; turning messages into token ids is the collector's business, and what the
policy sampled is never tokenised again.

    family = resolve("pointer_chase/v1")
    task = family.generate(seed=7, count=1)[0]
    environment = family.make()
    messages = await environment.reset(task, seed=0)
    step = await environment.step(">ab")
    await environment.close()

What else a family or an environment may say, each a small protocol that nobody has to implement:

| who | says | protocol |
|---|---|---|
| family | where its environments run: in the event loop, in a thread, in processes | `PlacedFamily` |
| environment | how long the policy's turns are: one that replays recorded work does | `PrescribingEnvironment` |
| environment | that it can play another episode when one has ended | `ReusableEnvironment` |
| environment | what an episode is worth that ran out of time | `JudgingEnvironment` |
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from random import Random
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from driftline.errors import ConfigurationError, EnvironmentFailed

ENTRY_POINT_GROUP = "driftline.environments"
REGISTRY_MODULE = "environments"

Placement = Literal["loop", "thread", "process"]
"""Where an environment's code runs: in the event loop of the cell, in a thread with a loop of its own among other
environments, or alone in a process, which can be killed."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an episode. `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `id` is the hash of its whole state, so equal tasks have equal ids on every machine."""

    id: str
    environment: str
    payload: Mapping[str, Any]
    """JSON values only."""

    @classmethod
    def create(cls, environment: str, payload: Mapping[str, Any]) -> Task:
        """Make a task, deriving its id from the environment id and the payload."""
        canonical = json.dumps([environment, payload], sort_keys=True, separators=(",", ":"))
        return cls(hashlib.sha256(canonical.encode()).hexdigest()[:24], environment, payload)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an action led to.

    `reward` is None as long as the environment has not judged the episode; "no answer" is not 0 unless the
    environment says so. `terminated`: the episode ended by its own rules; `truncated`: by a limit of turns.
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise EnvironmentFailed(f"the environment returned the reward {self.reward}: it must be finite")


class Environment(Protocol):
    """Plays episodes of one task at a time. Instances are not shared between concurrent episodes."""

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Start an episode of `task`; the same task and seed give the same episode. Returns the prompt."""
        ...

    async def step(self, action: str) -> StepResult:
        """Take the policy's text of one turn."""
        ...

    async def close(self) -> None:
        """Release everything; may be called at any time, more than once."""
        ...


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
class TaskFamily(Protocol):
    """Generates the tasks of one versioned environment id, and makes its environments."""

    @property
    def id(self) -> str:
        """Versioned id, such as `pointer_chase/v1`."""
        ...

    @property
    def alphabet(self) -> str | None:
        """All characters its texts use, for a character-level base policy; None where that makes no sense."""
        ...

    @property
    def stop(self) -> str:
        """The text that ends a turn of the policy (for a plain, character-level rendering)."""
        ...

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` distinct tasks; a pure function of its arguments."""
        ...

    def make(self, *, max_turns: int = ...) -> Environment:
        """Make one environment, which truncates its episodes after `max_turns` turns."""
        ...

    def oracle(self, task: Task) -> Sequence[str] | None:
        """Actions that solve the task, or None where no oracle exists."""
        ...

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """Actions of a weak demonstrator, for a warm start; None where none exists."""
        ...


def prescribes(environment: Environment) -> TypeGuard[PrescribingEnvironment]:
    """Whether it is a `PrescribingEnvironment`; like the next two, for every episode: it costs nothing."""
    return _has(type(environment), "prescribe")


def reusable(environment: Environment) -> TypeGuard[ReusableEnvironment]:
    """Whether it is a `ReusableEnvironment`."""
    return _has(type(environment), "recycle")


def judges(environment: Environment) -> TypeGuard[JudgingEnvironment]:
    """Whether it is a `JudgingEnvironment`."""
    return _has(type(environment), "judge")


@cache
def _has(kind: type, method: str) -> bool:
    return callable(getattr(kind, method, None))


def resolve(name: str) -> TaskFamily:
    """Find a task family by versioned id or by dotted path (`package.module:Attribute`).

    Looks in the `environments` package of the working directory, then among the entry points of the group
    `driftline.environments`.

    Raises:
        ConfigurationError: Nothing is registered under `name`; the message names the closest id.
    """
    if ":" in name:
        return _from_path(name)
    known = _registered()
    if name in known:
        found = known[name]
        return found() if isinstance(found, type) else found
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known)) or 'none'}"
    raise ConfigurationError(f"no environment {name!r}: {hint}")


def _from_path(path: str) -> TaskFamily:
    module, _, attribute = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"no environment at {path!r} ({error}): give package.module:Class") from None
    return found() if isinstance(found, type) else found


def _registered() -> dict[str, Any]:
    known: dict[str, Any] = {point.name: point.load() for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    try:
        local = importlib.import_module(REGISTRY_MODULE)
    except ModuleNotFoundError as error:
        if error.name != REGISTRY_MODULE:
            raise
        return known
    return known | dict(local.FAMILIES)
