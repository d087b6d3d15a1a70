"""The nouns of the contract, and what every environment and every family has."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast, runtime_checkable

from driftline.errors import EnvironmentFailed

PARTS_TOLERANCE = 1e-6
"""By how much the parts of a reward may miss it, absolute or as a share of it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an episode. `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str
    token_ids: tuple[int, ...] | None = None
    """Goes into the context as it is, in place of the content, which is for readers then: no template around it, and
    no end of the policy's turn before it. All messages of a prompt or of an answer have token ids, or none has."""


def as_messages(found: object, call: str) -> tuple[Message, ...]:
    """What a call of an environment returned as messages, as a tuple.

    Raises:
        EnvironmentFailed: It is something else.
    """
    messages = tuple(cast(Sequence[Any], found)) if isinstance(found, Sequence) else (found,)
    for message in messages:
        if not isinstance(message, Message):
            wrong = type(message).__name__
        elif not isinstance(message.role, str) or not isinstance(message.content, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            wrong = f"a Message of {message.content!r:.80}"
        else:
            continue
        raise EnvironmentFailed(f"{call} returned {wrong} among its messages: give Message(role, text) each")
    return cast(tuple[Message, ...], messages)


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

    It unpacks in Gymnasium's order, with `success` and `reward_parts` in `info`:

        observation, reward, terminated, truncated, info = await environment.step(action)
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Name -> what it adds to the reward. Empty, or the parts sum to the reward."""

    def __post_init__(self) -> None:
        """Have plain numbers and truth values, whatever of NumPy's or PyTorch's they were given as.

        Raises:
            EnvironmentFailed: Something is of a wrong type, or the reward is not finite, or not the sum of its parts.
        """
        plain = object.__setattr__
        plain(self, "messages", as_messages(self.messages, "an environment"))
        plain(self, "terminated", bool(self.terminated))
        plain(self, "truncated", bool(self.truncated))
        plain(self, "success", _truth(self.success))
        if self.reward is not None:
            plain(self, "reward", _finite(self.reward))
        if self.reward_parts:
            plain(self, "reward_parts", {_name(name): _finite(part) for name, part in self.reward_parts.items()})
            self._check_parts()

    def _check_parts(self) -> None:
        total = math.fsum(self.reward_parts.values())
        if self.reward is None:
            raise EnvironmentFailed("the environment returned parts of a reward, and no reward: give their sum")
        if not math.isclose(total, self.reward, rel_tol=PARTS_TOLERANCE, abs_tol=PARTS_TOLERANCE):
            raise EnvironmentFailed(
                f"the parts of the reward sum to {total:g}, and the reward is {self.reward:g}: "
                f"return their sum ({', '.join(sorted(self.reward_parts))})"
            )

    def __iter__(self) -> Iterator[Any]:
        """Observation, reward, terminated, truncated and info, as `gymnasium.Env.step` returns them."""
        told: dict[str, Any] = dict(self.info)
        if self.success is not None:
            told["success"] = self.success
        if self.reward_parts:
            told["reward_parts"] = dict(self.reward_parts)
        return iter((self.messages, self.reward, self.terminated, self.truncated, told))


class Environment(Protocol):
    """Plays episodes of one task at a time. Instances are not shared between concurrent episodes."""

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Start an episode of `task`; the same task and seed give the same episode. Returns the prompt."""
        ...

    async def step(self, action: str) -> StepResult:
        """Take the policy's text of one turn.

        Whatever the text is, the answer is an observation or the end: an exception means that the environment is
        broken, and the episode does not count.
        """
        ...

    async def close(self) -> None:
        """Release everything; may be called at any time, more than once."""
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
        """Return `count` distinct tasks; a pure function of its arguments.

        Raises:
            ConfigurationError: It has not so many; the message says how many.
        """
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


def _finite(number: Any) -> float:
    """A reward, or a part of one, as a plain number."""
    try:
        found = math.nan if isinstance(number, str | bytes) else float(number)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise EnvironmentFailed(
            f"the environment returned the reward {number!r:.80}: it must be finite, and a number"
        )
    return found


def _truth(success: Any) -> bool | None:
    if success is None or isinstance(success, bool):
        return success
    if not isinstance(success, str | bytes) and success in (0, 1):
        return bool(success)
    raise EnvironmentFailed(f"the environment returned the success {success!r:.80}: it must be True, False or None")


def _name(part: Any) -> str:
    """The name of a part of a reward, which goes into the trajectory's file."""
    if not isinstance(part, str) or not part.isprintable():
        raise EnvironmentFailed(f"the environment calls a part of its reward {part!r:.80}: name it in plain text")
    return part
