"""A family whose environments speak in token ids."""

from __future__ import annotations

from typing import Any

from driftline.environment import Message, StepResult, Task
from tests.support.rollout import OddFamily, encode


class TokenFamily(OddFamily):
    """Answers every turn with the ids it was given, reversed; ends after two."""

    def __init__(self, prompt: tuple[Message, ...] | None = None) -> None:
        super().__init__()
        self.prompt = prompt or (Message("user", "a prompt", tuple(encode("?ab\n"))),)
        self.taken: list[tuple[tuple[int, ...], str]] = []

    def make(self, *, max_turns: int = 20) -> Any:
        return TokenSpeaker(self)


class TokenSpeaker:
    def __init__(self, family: TokenFamily) -> None:
        self._family = family
        self._turns = 0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        return self._family.prompt

    async def step(self, action: str) -> StepResult:
        raise AssertionError("step_tokens is there")

    async def step_tokens(self, token_ids: tuple[int, ...], text: str) -> StepResult:
        self._family.taken.append((token_ids, text))
        self._turns += 1
        if self._turns == 2:
            return StepResult(reward=1.0, terminated=True, success=True)
        return StepResult((Message("tool", "reversed", token_ids[::-1]),))

    async def close(self) -> None: ...
