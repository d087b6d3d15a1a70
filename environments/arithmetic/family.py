"""`arithmetic/v1`: one question, one turn. Small enough for a model of 135M parameters to be right now and then.

The reply is judged by the last whole number in it: "3 + 4 = 7." is as right as "7". A wrong reply that is a number
and nothing else earns `FORM_REWARD`, so that there is something to learn before the first right answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from driftline.environment import Message, Placement, Snapshot, StepResult, Task
from driftline.errors import ConfigurationError, EnvironmentFailed

LARGEST = 20
"""Of the two numbers, which are at least 1."""
QUESTION = "What is {left} {sign} {right}? Reply with the number only."
FORM_REWARD = 0.1
WHOLE_NUMBER = re.compile(r"(?<![\d.])-?\d+(?![\d]|\.\d)")


@dataclass(frozen=True)
class Arithmetic:
    """The family: sums and differences of small numbers."""

    id: str = "arithmetic/v1"
    alphabet: str | None = None
    stop: str = "\n"
    runs_in: Placement = "loop"

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks that differ in content."""
        possible = 2 * LARGEST * LARGEST
        if count > possible:
            raise ConfigurationError(f"{self.id} has {possible} tasks, not {count}: lower environment.train_tasks")
        chosen = Random(f"{self.id}:{seed}").sample(range(possible), count)
        return [self._task(number) for number in chosen]

    def make(self, *, max_turns: int = 1) -> ArithmeticQuestion:
        """Make an environment; the one turn there is ends the episode."""
        del max_turns
        return ArithmeticQuestion()

    def oracle(self, task: Task) -> Sequence[str]:
        """The number."""
        return [str(task.payload["answer"])]

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no weak demonstrator."""
        return None

    def _task(self, number: int) -> Task:
        rest, is_difference = divmod(number, 2)
        left, right = 1 + rest // LARGEST, 1 + rest % LARGEST
        sign, answer = ("-", left - right) if is_difference else ("+", left + right)
        question = QUESTION.format(left=left, sign=sign, right=right)
        return Task.create(self.id, {"question": question, "answer": answer})


class ArithmeticQuestion:
    """Asks, and judges the reply."""

    def __init__(self) -> None:
        self._answer: int | None = None

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Ask. There is no chance in it, so the seed changes nothing."""
        del seed
        self._answer = int(task.payload["answer"])
        return (Message("user", str(task.payload["question"])),)

    async def step(self, action: str) -> StepResult:
        """Judge the reply."""
        if self._answer is None:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        numbers = WHOLE_NUMBER.findall(action)
        right = bool(numbers) and int(numbers[-1]) == self._answer
        self._answer = None
        in_form = not right and bool(WHOLE_NUMBER.fullmatch(action.strip()))
        parts = {"answer": float(right), "form": FORM_REWARD * in_form}
        return StepResult(reward=sum(parts.values()), terminated=True, success=right, reward_parts=parts)

    async def snapshot(self) -> bool:
        """Whether the question is open."""
        return self._answer is not None

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Have it asked, or answered."""
        self._answer = int(task.payload["answer"]) if snapshot else None

    async def close(self) -> None:
        """Forget the question."""
        self._answer = None
