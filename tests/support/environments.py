"""Task families for tests, named by dotted path: those that misbehave, and one that rewards by chance."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class Broken(PointerChase):
    """Its environments raise at once; an environment of its own beside others."""

    id: str = "broken/v1"

    def make(self, *, max_turns: int = 20) -> Any:
        return _Raises(max_turns)


@dataclass(frozen=True)
class BrokenToo(Broken):
    """Another one."""

    id: str = "broken-too/v1"


class Exits(PointerChase):
    """Its environments end their process at once; for processes only."""

    def make(self, *, max_turns: int = 20) -> Any:
        return _Exits(max_turns)


class Leaks(PointerChase):
    """Its environments start a process and forget it."""

    def make(self, *, max_turns: int = 20) -> Any:
        return _Leaks(max_turns)


class StartsLate(PointerChase):
    """Leaves `begun` in the folder that `STARTS_LATE` names, and is not there until `go` is, or 200 s have passed."""

    def __init__(self) -> None:
        super().__init__()
        if folder := os.environ.get("STARTS_LATE"):
            (Path(folder) / "begun").touch()
            until = time.monotonic() + 200.0
            while not (Path(folder) / "go").exists() and time.monotonic() < until:
                time.sleep(0.01)

    def make(self, *, max_turns: int = 20) -> Any:
        return _Plain(max_turns)


class TenMegabytes(PointerChase):
    """Its environments answer with ten megabytes."""

    def make(self, *, max_turns: int = 20) -> Any:
        return _TenMegabytes(max_turns)


class _Plain:
    def __init__(self, max_turns: int) -> None: ...

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        return (Message("user", f"?{task.payload['start']}\n"),)

    async def step(self, action: str) -> StepResult:
        return StepResult(reward=1.0, terminated=True, success=True)

    async def close(self) -> None: ...


class _Exits(_Plain):
    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        os._exit(7)


class _Leaks(_Plain):
    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
        return await super().reset(task, seed)


class _TenMegabytes(_Plain):
    async def step(self, action: str) -> StepResult:
        return StepResult((Message("tool", "a" * 10_000_000),))


class TellsWhere(PointerChase):
    """Its environments say in which process and thread they are reset."""

    def make(self, *, max_turns: int = 20) -> Any:
        return _TellsWhere(max_turns)


class _TellsWhere(_Raises):
    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        raise RuntimeError(f"played in {os.getpid()}/{threading.get_ident()}")
