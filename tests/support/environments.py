"""Task families for tests, named by dotted path: those that misbehave, and one that rewards by chance."""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import dataclass
from random import Random
from typing import Any

from driftline.environment import Message, StepResult, Task
from environments.pointer_chase import PointerChase


class Raises(PointerChase):
    """Its environments raise at once."""

    def make(self, *, max_turns: int = 20) -> Any:
        return _Raises(max_turns)


class Blocks(PointerChase):
    """Its environments hold the event loop."""

    def make(self, *, max_turns: int = 20) -> Any:
        return _Blocks(max_turns)


class NoDemonstrations(PointerChase):
    """Has nothing to imitate."""

    def demonstrate(self, task: Task, rng: Random) -> Any:
        return None


@dataclass(frozen=True)
class Dice(PointerChase):
    """Two turns and a reward that depends on what was said: groups of a policy that knows nothing differ in it.

    A turn waits `wait_s`, so that a run lasts long enough to be killed at.
    """

    id: str = "dice/v1"
    wait_s: float = 0.1

    def make(self, *, max_turns: int = 20) -> Any:
        return _Dice(self.wait_s)

    def oracle(self, task: Task) -> Any:
        return None


@dataclass(frozen=True)
class QuickDice(Dice):
    """The same without waiting."""

    id: str = "quick-dice/v1"
    wait_s: float = 0.0


@dataclass(frozen=True)
class LeisurelyDice(Dice):
    """The same, so slow that an engine can be started while a run goes on."""

    id: str = "leisurely-dice/v1"
    wait_s: float = 2.0


@dataclass(frozen=True)
class SlowDice(Dice):
    """The same at leisure."""

    id: str = "slow-dice/v1"
    wait_s: float = 0.6


class _Dice:
    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._said = ""

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        self._said = ""
        return (Message("user", f"?{task.payload['start']}\n"),)

    async def step(self, action: str) -> StepResult:
        await asyncio.sleep(self._wait_s)
        first, self._said = not self._said, f"{self._said}|{action}"
        if first:
            return StepResult((Message("tool", ":ab\n"),))
        reward = float(zlib.crc32(self._said.encode()) % 2)
        return StepResult(reward=reward, terminated=True, success=reward > 0)

    async def close(self) -> None: ...


class _Raises:
    def __init__(self, max_turns: int) -> None: ...

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        raise ZeroDivisionError("broken")

    async def step(self, action: str) -> Any: ...

    async def close(self) -> None: ...


class _Blocks(_Raises):
    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        time.sleep(30)  # noqa: ASYNC251
        return ()
