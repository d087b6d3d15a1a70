"""One episode of `trace_replay/v1`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from driftline.environment import Message, Prescription, Snapshot, StepResult, Task
from driftline.errors import EnvironmentFailed


class Replay:
    """Prescribes the recorded tokens of each turn, and sleeps as long as the environment's part of it took.

    A sleep is no shorter than what was recorded, and as much longer as the event loop is late.
    """

    def __init__(self, max_turns: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._max_turns = max_turns
        self._sleep = sleep
        self._shape: dict[str, Any] | None = None
        self._text_key = ""
        self._member = self._turn = 0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Start the first member's episode."""
        return (await self.prescribe(task, seed, 0)).messages

    async def prescribe(self, task: Task, seed: int, member: int) -> Prescription:
        """Start the episode of a member. There is no chance in it, so the seed changes nothing."""
        del seed
        shape = self._begin(task, member, 0)
        await self._take(shape["reset_seconds"])
        # One prompt for the whole group, as in any other: what members share, the engine may share.
        prompt = Message("user", _digits(task.id, shape["prompt_tokens"]))
        return Prescription((prompt,), tuple(shape["sampled_tokens"]))

    async def step(self, action: str) -> StepResult:
        """Take the turn's recorded seconds, whatever the policy wrote; the last one ends the episode."""
        del action
        if self._shape is None:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        shape, turn = self._shape, self._turn
        self._turn += 1
        await self._take(shape["tool_seconds"][turn])
        if self._turn == len(shape["sampled_tokens"]):
            self._shape = None
            await self._take(shape["reward_seconds"])
            reward = shape["reward"]
            return StepResult(reward=reward, terminated=True, success=None if reward is None else reward > 0)
        length = shape["observation_tokens"][turn]
        text = _digits(f"{self._text_key}/{turn}", length)
        return StepResult((Message("tool", text),) if length else ())

    async def close(self) -> None:
        """Forget the episode."""
        self._shape = None

    async def snapshot(self) -> dict[str, Any]:
        """Which member it plays, and the turns that it has taken."""
        return {"member": self._member, "turn": self._turn}

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Be after those turns, without their seconds. Its turns have the tokens that `prescribe` gave the member."""
        found = snapshot if isinstance(snapshot, dict) else {}
        member, turn = found.get("member"), found.get("turn")
        if not isinstance(member, int) or not isinstance(turn, int):
            raise EnvironmentFailed(f"{snapshot!r} is no snapshot of trace_replay/v1: it has no member and turn")
        self._begin(task, member, turn)

    def _begin(self, task: Task, member: int, turn: int) -> dict[str, Any]:
        """Be at a turn of a member; returns the member's shape."""
        members: list[dict[str, Any]] = task.payload["members"]
        if member >= len(members):
            raise EnvironmentFailed(
                f"the group has {len(members)} members in the trace: lower rollout.group_size to {len(members)}"
            )
        shape = members[member]
        turns = len(shape["sampled_tokens"])
        if turns > self._max_turns:
            raise EnvironmentFailed(f"the episode has {turns} turns in the trace: raise environment.max_turns")
        self._shape = shape if turn < turns else None
        self._member, self._turn = member, turn
        self._text_key = f"{task.id}/{member}"
        return shape

    async def _take(self, seconds: float) -> None:
        if seconds:
            await self._sleep(seconds)


def _digits(key: str, count: int) -> str:
    """As many digits, which look like others for another key."""
    return "".join(str(byte % 10) for byte in hashlib.shake_128(key.encode()).digest(count))
