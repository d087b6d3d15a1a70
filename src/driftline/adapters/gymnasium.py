"""`gymnasium/<EnvId>/v1`: an environment of Gymnasium, played in text.

    LAKE = Gymnasium("FrozenLake-v1", kwargs={"is_slippery": False}, actions=("left", "down", "right", "up"))

An episode's reward is its return: the sum of what `step` gave, and None before the end. A task holds the seed of
Gymnasium's `reset`, from which all chance of the episode comes there; so every member of a group meets the same.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, cast

from driftline.adapters.foreign import as_json, id_of, name_in, required, versions_of
from driftline.adapters.spaces import Reader, how_to_answer, reader_of, shown
from driftline.environment import Message, Placement, Snapshot, StepResult, Task
from driftline.errors import ConfigurationError, EnvironmentFailed

ADAPTER = "gymnasium"
MOST_SEEDS = 2**31
SUCCESS = ("is_success", "success", "won")
"""Under what name environments say in `info` that the goal is reached."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Gymnasium:
    """The family of one environment. Whatever of it changes a task or its score makes the next `version`."""

    environment: str
    """As `gymnasium.make` takes it: `FrozenLake-v1`, or `package.module:Name-v0`, which imports the module first."""
    kwargs: Mapping[str, Any] = field(default_factory=_nothing, hash=False)
    """For `gymnasium.make`; JSON values."""
    options: Mapping[str, Any] = field(default_factory=_nothing, hash=False)
    """For its `reset`; JSON values."""
    prompt: str = ""
    """Precedes the first observation; empty names the environment."""
    actions: tuple[str, ...] = ()
    """Names of the actions of a `Discrete` space, in order. Without them the policy answers with the number."""
    solved_at: float | None = None
    """A return from which an episode is a success, where `info` does not say so. None: the environment's own
    `reward_threshold`, and without one nothing is known of success."""
    read: Callable[[str], Any] | None = None
    """Reads an action from a turn, for spaces that are neither `Text` nor `Discrete`; ValueError: there is none."""
    show: Callable[[Any], str] | None = None
    """An observation in words. Without it: text as it is, else the `ansi` rendering, else JSON."""
    name: str = ""
    """In the id, in place of the environment's."""
    version: int = 1
    runs_in: Placement = "process"
    alphabet: str | None = None
    stop: str = "\n"

    def __post_init__(self) -> None:
        as_json(f"kwargs of {self.environment}", self.kwargs)
        as_json(f"options of {self.environment}", self.options)

    @property
    def id(self) -> str:
        """`gymnasium/<name>/v<version>`."""
        return id_of(ADAPTER, self.name or self.environment.partition(":")[2] or self.environment, self.version)

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks: seeds of the environment, drawn from `seed`.

        Raises:
            ConfigurationError: Gymnasium is missing, or does not know the environment.
        """
        state = self.state()
        seeds = Random(f"{self.id}:{seed}").sample(range(MOST_SEEDS), count)
        return [Task.create(self.id, {**state, "seed": one}) for one in seeds]

    def make(self, *, max_turns: int = 100) -> Playing:
        """Make an environment that truncates after `max_turns` turns, with the return until then."""
        return Playing(self, max_turns)

    def oracle(self, task: Task) -> Sequence[str] | None:
        """Gymnasium has no oracles."""
        return None

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no demonstrator."""
        return None

    def open(self) -> Any:
        """A new `gymnasium.Env`, which draws itself as text where it can.

        Raises:
            ConfigurationError: Gymnasium does not know it, or cannot make it of these `kwargs`.
        """
        return self._make(**({"render_mode": "ansi"} if self._draws else {}))

    @cached_property
    def _draws(self) -> bool:
        """Whether it is to draw itself as text; one is made to see what it can."""
        if self.show is not None or "render_mode" in self.kwargs:
            return False
        made = self._make()
        try:
            is_text = type(made.observation_space).__name__ == "Text"
            known: Mapping[str, Any] = made.metadata or {}
            return not is_text and "ansi" in known.get("render_modes", ())
        finally:
            made.close()

    def _make(self, **more: str) -> Any:
        gymnasium = required("gymnasium", ADAPTER)
        try:
            return gymnasium.make(self.environment, disable_env_checker=True, **{**self.kwargs, **more})
        except Exception as error:
            raise ConfigurationError(f"gymnasium.make({self.environment!r}) raised {_named(error)}") from error

    def state(self) -> dict[str, Any]:
        """What all its tasks are made of, and the versions that they depend on.

        Raises:
            ConfigurationError: Gymnasium is missing, or does not know the environment.
        """
        gymnasium = required("gymnasium", ADAPTER)
        try:
            module, _, bare = self.environment.rpartition(":")
            if module:
                importlib.import_module(module)
            spec = gymnasium.spec(bare)
        except Exception as error:
            raise ConfigurationError(f"gymnasium has no environment {self.environment!r}: {_named(error)}") from None
        made_by = spec.entry_point
        module = made_by if isinstance(made_by, str) else cast(str, made_by.__module__)
        return {
            "environment": self.environment,
            "kwargs": as_json("kwargs", self.kwargs),
            "options": as_json("options", self.options),
            "prompt": self.prompt,
            "actions": list(self.actions),
            "solved_at": self.solved_at,
            "versions": versions_of("gymnasium", module.partition(":")[0]),
        }


class Playing:
    """Plays episodes in one `gymnasium.Env`, which is made for the first of them."""

    def __init__(self, family: Gymnasium, max_turns: int) -> None:
        self._family = family
        self._max_turns = max_turns
        self._made: Any = None
        self._read: Reader = str
        self._said: list[str] = []
        self._turns_left = 0
        self._return = 0.0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Begin at the task's seed; `seed` changes nothing.

        Raises:
            EnvironmentFailed: The task was made with other versions, or the environment raised.
        """
        del seed
        self._check(task)
        if self._made is None:
            self._made = self._family.open()
            self._read = self._family.read or reader_of(self._made.action_space, self._family.actions)
        self._said, self._turns_left, self._return = [], self._max_turns, 0.0
        options = dict(self._family.options) or None
        observation, _ = self._ask("reset", lambda: self._made.reset(seed=task.payload["seed"], options=options))
        head = self._family.prompt or f"You act in {self._family.environment}, step by step."
        answer = "" if self._family.read else how_to_answer(self._made.action_space, self._family.actions)
        parts = [head, self._shown(observation), answer]
        return (Message("user", "\n\n".join(part for part in parts if part)),)

    async def step(self, action: str) -> StepResult:
        """Take a step with the action in the policy's text; a text without one costs the turn.

        Raises:
            EnvironmentFailed: The environment raised, or gave a reward that is no number.
        """
        if self._turns_left == 0:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        self._turns_left -= 1
        self._said.append(action)
        try:
            read = self._read(action)
        except ValueError as why:
            return self._result(f"That is no action: {why}", terminated=False, truncated=False, info={})
        observation, reward, terminated, truncated, info = self._ask("step", lambda: self._made.step(read))
        self._return += _number(reward)
        return self._result(
            self._shown(observation), terminated=bool(terminated), truncated=bool(truncated), info=info
        )

    async def snapshot(self) -> list[str]:
        """The turns until now: with the task's seed they lead to the same state again."""
        return list(self._said)

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Take the same turns again."""
        if not isinstance(snapshot, list) or not all(isinstance(said, str) for said in snapshot):
            raise EnvironmentFailed(f"it is no snapshot of {task.environment}")
        await self.reset(task, 0)
        for said in snapshot:
            await self.step(said)

    async def close(self) -> None:
        """Close what was made."""
        made, self._made, self._turns_left = self._made, None, 0
        if made is not None:
            self._ask("close", made.close)

    def _check(self, task: Task) -> None:
        seed = task.payload.get("seed")
        if task != Task.create(self._family.id, {**self._family.state(), "seed": seed}):
            raise EnvironmentFailed(
                f"task {task.id} was made by another {task.environment}, or with other versions of its packages "
                f"({task.payload.get('versions')}): generate it again, or install those"
            )

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise EnvironmentFailed(f"{self._family.environment}: {what} raised {_named(error)}") from error

    def _shown(self, observation: Any) -> str:
        if self._family.show is not None:
            return self._family.show(observation)
        return self._ask("render", lambda: shown(self._made, observation))

    def _result(self, text: str, *, terminated: bool, truncated: bool, info: Mapping[str, Any]) -> StepResult:
        messages = (Message("user", text),)
        if not terminated and not truncated and self._turns_left > 0:
            return StepResult(messages)
        self._turns_left = 0
        return StepResult(
            messages,
            reward=self._return,
            terminated=terminated,
            truncated=not terminated,
            success=self._success(info),
        )

    def _success(self, info: Mapping[str, Any]) -> bool | None:
        for name in SUCCESS:
            if name in info:
                return bool(info[name])
        spec = self._made.spec
        own = None if spec is None else spec.reward_threshold
        threshold = own if self._family.solved_at is None else self._family.solved_at
        return None if threshold is None else self._return >= threshold


def named(rest: str) -> Gymnasium:
    """The family of `gymnasium/<rest>`, with the adapter's defaults.

    Raises:
        ConfigurationError: It is no such name.
    """
    return Gymnasium(name_in(ADAPTER, rest))


def _number(reward: Any) -> float:
    try:
        found = float(reward)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise EnvironmentFailed(f"step returned the reward {reward!r}: it must be a finite number")
    return found


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
