"""Proposals are played before they are published: what passes, what does not, and what is put aside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest

from driftline.environment import Message, StepResult, Task
from environments import FAMILIES
from environments.pointer_chase import PointerChase
from tasks.validation import validate

FAMILY = PointerChase()


async def test_the_tasks_of_a_sound_family_are_all_accepted() -> None:
    tasks = FAMILY.generate(1, 40)
    found = await validate(FAMILY, tasks, deadline_s=5.0)
    assert found.accepted == tuple(task.id for task in tasks)
    assert (found.refused, found.attempts, found.failures) == ((), 40 * 5, 0)


async def test_one_turn_tasks_are_accepted() -> None:
    family = FAMILIES["arithmetic/v1"]
    found = await validate(family, family.generate(1, 10), deadline_s=5.0)
    assert (len(found.accepted), found.refused) == (10, ())


@dataclass
class Odd:
    """An environment that misbehaves as told; the n-th attempt of all."""

    how: str
    attempt: int

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        if self.how == "raises":
            raise KeyError("no such file")
        if self.how == "gives up":
            raise asyncio.CancelledError
        if self.how == "hangs":
            await asyncio.sleep(60)
        if self.how == "raises at times" and self.attempt == 1:
            raise OSError("disk full")
        return () if self.how == "has no prompt" else (Message("user", "?"),)

    async def step(self, action: str) -> StepResult:
        right = action.startswith("=") if self.how != "accepts nothing" else False
        if self.how == "accepts anything":
            right = True
        if self.how == "is flaky" and self.attempt == 1:
            right = False
        told = str(self.attempt) if self.how == "tells the time" else "."
        given: Any = np.float32(right) if self.how == "counts in NumPy" else float(right)
        return StepResult((Message("tool", told),), reward=given, terminated=True, success=right)

    async def close(self) -> None: ...


@dataclass
class OddFamily:
    how: str
    attempts: Any = field(default_factory=count)
    id: str = "odd/v1"

    def make(self, *, max_turns: int = 20) -> Odd:
        return Odd(self.how, next(self.attempts))

    def oracle(self, task: Task) -> Sequence[str] | None:
        if self.how == "has a broken oracle":
            raise LookupError("no solution")
        return None if self.how == "has no oracle" else ["=1"]


@pytest.mark.parametrize(
    ("how", "verdict", "reason"),
    [
        ("works", None, ""),
        ("has no oracle", None, ""),
        ("counts in NumPy", None, ""),
        ("raises", "rejected", "KeyError"),
        ("gives up", "rejected", "CancelledError, and nobody had cancelled it"),
        ("hangs", "rejected", "longer than"),
        ("has no prompt", "rejected", "no prompt"),
        ("has a broken oracle", "rejected", "oracle: LookupError: no solution"),
        ("accepts nothing", "rejected", "does not accept its oracle's solution"),
        ("accepts anything", "rejected", "solved without an answer"),
        ("raises at times", "quarantined", "disk full"),
        ("is flaky", "quarantined", "equal attempts differ"),
        ("tells the time", "quarantined", "equal attempts differ"),
    ],
)
async def test_a_misbehaving_environment_has_its_tasks_refused(how: str, verdict: str | None, reason: str) -> None:
    family: Any = OddFamily(how)
    found = await validate(family, [Task.create("odd/v1", {})], deadline_s=0.2)
    if verdict is None:
        assert (len(found.accepted), found.refused) == (1, ())
        return
    assert found.accepted == ()
    assert (found.refused[0].status, reason in found.refused[0].reason) == (verdict, True)
    assert found.refused[0].evidence
    assert found.timeouts == (found.attempts if how == "hangs" else 0)


class Halving:
    """Guess the number: the oracle halves what is left, and so says the numbers of many other tasks on its way."""

    id = "halving/v1"

    def generate(self, seed: int, count: int) -> list[Task]:
        return [Task.create(self.id, {"number": number}) for number in Random(seed).sample(range(64), count)]

    def make(self, *, max_turns: int = 20) -> Guessing:
        return Guessing()

    def oracle(self, task: Task) -> Sequence[str]:
        low, high, said = 0, 63, list[str]()
        while True:
            middle = (low + high) // 2
            said.append(str(middle))
            if middle == task.payload["number"]:
                return said
            low, high = (middle + 1, high) if middle < task.payload["number"] else (low, middle - 1)


class Guessing:
    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        self.number = task.payload["number"]
        return (Message("user", "0 to 63?"),)

    async def step(self, action: str) -> StepResult:
        if action == str(self.number):
            return StepResult(reward=1.0, terminated=True, success=True)
        return StepResult((Message("tool", "no"),))

    async def close(self) -> None: ...


async def test_a_search_that_passes_over_another_tasks_answer_is_no_shortcut() -> None:
    family: Any = Halving()
    tasks = family.generate(0, 64)
    found = await validate(family, tasks, deadline_s=5.0)
    assert (len(found.accepted), found.refused, found.attempts) == (64, (), 64 * 5)
