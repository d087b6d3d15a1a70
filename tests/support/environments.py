"""Task families that misbehave, named by dotted path in parameters."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from driftline.environment import Message, Task
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
