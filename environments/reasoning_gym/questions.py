"""`reasoning_gym/<dataset>/v1`: a question, and one turn to answer it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from driftline.environment import Message, Placement, Snapshot, StepResult, Task
from driftline.errors import EnvironmentFailed
from environments.reasoning_gym import library
from environments.reasoning_gym.datasets import HEAVY, LEVELS, VERSION
from environments.reasoning_gym.scoring import answer_in, is_right
from environments.reasoning_gym.steps.rush_hour import RushHour

FORM = "Give the final answer, and nothing else, between <answer> and </answer>."


def tasks_of(environment: str, dataset: str, level: int | None, seed: int, count: int) -> list[Task]:
    """Tasks of a dataset: the state of each is an entry, the level it was asked for, and what generated it."""
    of_all = {"level": level, "generator": f"reasoning-gym {VERSION}"}
    found = library.entries(dataset, level=level, seed=seed, count=count)
    return [Task.create(environment, {**entry, **of_all}) for entry in found]


@dataclass(frozen=True)
class Questions:
    """The family of one dataset that has no curriculum."""

    dataset: str
    alphabet: str | None = None
    stop: str = "\n"

    @property
    def id(self) -> str:
        return f"reasoning_gym/{self.dataset}/v1"

    @property
    def runs_in(self) -> Placement:
        """Scorers compute; those that an answer can make compute for ever run in processes."""
        return "process" if self.dataset in HEAVY else "thread"

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks by the dataset's own defaults."""
        return tasks_of(self.id, self.dataset, None, seed, count)

    def make(self, *, max_turns: int = 1) -> Question:
        """Make an environment; the one turn there is ends the episode."""
        del max_turns
        library.reasoning_gym()
        return Question(self.dataset)

    def oracle(self, task: Task) -> Sequence[str] | None:
        """The dataset's answer, where it gives one."""
        answer = _example(self.dataset, task.payload)
        return None if answer is None else [f"<answer>{answer}</answer>"]

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no weak demonstrator."""
        return None


@dataclass(frozen=True)
class GradedQuestions(Questions):
    """The family of one dataset with a curriculum: on a level all its attributes are at that one or their last."""

    @property
    def levels(self) -> int:
        return LEVELS[self.dataset]

    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        return tasks_of(self.id, self.dataset, level, seed, count)

    def level_of(self, task: Task) -> int | None:
        return task.payload["level"]


class Question:
    """Asks, and judges the last answer of the reply; a reply without one is worth 0."""

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._entry: Mapping[str, Any] | None = None

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Ask. There is no chance in it, so the seed changes nothing."""
        del seed
        self._entry = task.payload
        return (Message("user", f"{task.payload['question']}\n\n{FORM}"),)

    async def step(self, action: str) -> StepResult:
        """Judge the reply."""
        if self._entry is None:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        entry, self._entry = self._entry, None
        answer = answer_in(action)
        right = answer is not None and is_right(self._dataset, answer, entry)
        info = {"answered": answer is not None}
        return StepResult(reward=float(right), terminated=True, success=right, info=info)

    async def snapshot(self) -> bool:
        """Whether the question is open."""
        return self._entry is not None

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Have it asked, or answered."""
        self._entry = task.payload if snapshot else None

    async def close(self) -> None:
        """Forget the question."""
        self._entry = None


def _example(dataset: str, entry: Mapping[str, Any]) -> str | None:
    return EXAMPLES[dataset](entry) if dataset in EXAMPLES else entry["answer"]


EXAMPLES: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "graph_color": lambda entry: json.dumps(entry["metadata"]["possible_answer"]),
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"],
    "rush_hour": lambda entry: " ".join(RushHour().solution(entry)),
}
"""Datasets whose entries have several answers, and none under `answer`."""
