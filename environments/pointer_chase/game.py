"""One episode of `pointer_chase/v1`."""

from __future__ import annotations

import re
from typing import Any

from driftline.environment import Message, Snapshot, StepResult, Task
from driftline.errors import EnvironmentFailed

READ = re.compile(r">([a-z]{2})")
ANSWER = re.compile(r"=([0-9]{2})")
NO_SUCH_FILE = ":?\n"
NOT_UNDERSTOOD = "?\n"


def is_answer(content: str) -> bool:
    """Whether a file's content is an answer, and not the name of the next file."""
    return content[0].isdigit()


class PointerChaseGame:
    """Takes `>ab` (read a file) and `=42` (answer); anything else costs a turn and is answered by `?`."""

    def __init__(self, max_turns: int) -> None:
        self._max_turns = max_turns
        self._files: dict[str, str] = {}
        self._answer = ""
        self._turns_left = 0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Start an episode. There is no chance in it, so the seed changes nothing."""
        del seed
        self._begin(task, self._max_turns)
        return (Message("user", f"?{task.payload['start']}\n"),)

    async def step(self, action: str) -> StepResult:
        """Take one turn: a right answer earns 1, a wrong one or running out of turns 0."""
        if self._turns_left == 0:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        self._turns_left -= 1
        action = action.removesuffix("\n")
        if answer := ANSWER.fullmatch(action):
            self._turns_left = 0
            right = answer[1] == self._answer
            return StepResult(reward=float(right), terminated=True, success=right)
        messages = (Message("tool", self._observe(action)),)
        if self._turns_left == 0:
            return StepResult(messages, reward=0.0, truncated=True, success=False)
        return StepResult(messages)

    async def close(self) -> None:
        """Forget the episode."""
        self._files = {}
        self._turns_left = 0

    async def snapshot(self) -> dict[str, Any]:
        """The turns left: the files never change."""
        return {"turns_left": self._turns_left}

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Go on with so many turns left."""
        turns_left = snapshot.get("turns_left") if isinstance(snapshot, dict) else None
        if not isinstance(turns_left, int):
            raise EnvironmentFailed(f"{snapshot!r} is no snapshot of pointer_chase/v1: it has no turns_left")
        self._begin(task, turns_left)

    def _begin(self, task: Task, turns_left: int) -> None:
        self._files = dict(task.payload["files"])
        self._answer = self._answer_from(str(task.payload["start"]))
        self._turns_left = turns_left

    def _observe(self, action: str) -> str:
        read = READ.fullmatch(action)
        if read is None:
            return NOT_UNDERSTOOD
        content = self._files.get(read[1])
        if content is None:
            return NO_SUCH_FILE
        return f"={content}\n" if is_answer(content) else f":{content}\n"

    def _answer_from(self, start: str) -> str:
        content, hops = start, 0
        while not is_answer(content):
            if hops > len(self._files) or content not in self._files:
                raise EnvironmentFailed(f"the chain from {start!r} leads to no answer: the task is broken")
            content, hops = self._files[content], hops + 1
        return content
