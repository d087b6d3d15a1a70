"""A task set for the real verifiers, found by this module's name."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Additions"]


class Data(vf.TaskData):
    answer: int


class Config(vf.TasksetConfig):
    highest: int = 9


class Addition(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def right(self, task: Data, trace: Any) -> float:
        return float(trace.last_reply.split()[-1:] == [str(task.answer)])

    @vf.reward(weight=0.25)
    async def brief(self, trace: Any) -> float:
        return float(0 < len(trace.last_reply) <= 3)


class Additions(vf.Taskset[Addition, Config]):
    def load(self) -> list[Addition]:
        numbers = range(self.config.highest + 1)
        return [
            Addition(Data(prompt=f"What is {one} + {other}?", system_prompt="Answer briefly.", answer=one + other))
            for one in numbers
            for other in numbers
        ]
