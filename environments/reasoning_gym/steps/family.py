"""`reasoning_gym/<dataset>_steps/v1`: the puzzle of the dataset, played move by move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from driftline.environment import Message, Placement, Snapshot, StepResult, Task
from driftline.errors import EnvironmentFailed
from environments.reasoning_gym.datasets import LEVELS
from environments.reasoning_gym.questions import tasks_of
from environments.reasoning_gym.scoring import answer_in
from environments.reasoning_gym.steps.hanoi import Hanoi
from environments.reasoning_gym.steps.maze import Maze
from environments.reasoning_gym.steps.rules import Rules
from environments.reasoning_gym.steps.rush_hour import RushHour
from environments.reasoning_gym.steps.sokoban import Sokoban

RULES: Mapping[str, Rules[Any]] = {
    "maze": Maze(),
    "rush_hour": RushHour(),
    "sokoban": Sokoban(),
    "tower_of_hanoi": Hanoi(),
}
NOT_POSSIBLE = "That is no move, or not possible. The board is as before:"


@dataclass(frozen=True)
class Steps:
    """The family. Its tasks are the dataset's entries; a move is a turn, one that is not possible as well."""

    dataset: str
    alphabet: str | None = None
    stop: str = "\n"
    runs_in: Placement = "loop"

    @property
    def id(self) -> str:
        return f"reasoning_gym/{self.dataset}_steps/v1"

    @property
    def levels(self) -> int:
        return LEVELS[self.dataset]

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks by the dataset's own defaults."""
        return tasks_of(self.id, self.dataset, None, seed, count)

    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        """Return `count` tasks of a level of the dataset's curriculum."""
        return tasks_of(self.id, self.dataset, level, seed, count)

    def level_of(self, task: Task) -> int | None:
        return task.payload["level"]

    def make(self, *, max_turns: int = 100) -> Puzzle:
        """Make an environment that truncates after `max_turns` moves, with a reward of 0."""
        return Puzzle(RULES[self.dataset], max_turns)

    def oracle(self, task: Task) -> Sequence[str]:
        """The dataset's solution, or one with the fewest moves."""
        return RULES[self.dataset].solution(task.payload)

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no weak demonstrator."""
        return None


class Puzzle:
    """Shows the board after every move; solving it earns 1."""

    def __init__(self, rules: Rules[Any], max_turns: int) -> None:
        self._rules = rules
        self._max_turns = max_turns
        self._metadata: Mapping[str, Any] = {}
        self._state: Any = None
        self._turns_left = 0

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Show the board. There is no chance in it, so the seed changes nothing."""
        del seed
        self._begin(task, self._rules.start(task.payload["metadata"]), self._max_turns)
        goal = self._rules.goal(self._metadata)
        return (Message("user", f"{goal}\n\n{self._board()}\n\n{self._rules.how}"),)

    async def step(self, action: str) -> StepResult:
        """Make a move: the reply itself, or what it has between <answer> and </answer>."""
        if self._turns_left == 0:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        self._turns_left -= 1
        answer = answer_in(action)
        following = self._rules.moved(self._metadata, self._state, action.strip() if answer is None else answer)
        self._state = self._state if following is None else following
        board = self._board() if following is not None else f"{NOT_POSSIBLE}\n{self._board()}"
        messages = (Message("user", board),)
        if self._rules.solved(self._metadata, self._state):
            self._turns_left = 0
            return StepResult(messages, reward=1.0, terminated=True, success=True)
        if self._turns_left == 0:
            return StepResult(messages, reward=0.0, truncated=True, success=False)
        return StepResult(messages)

    async def snapshot(self) -> dict[str, Any]:
        """The position and the turns left."""
        return {"state": self._rules.to_json(self._state), "turns_left": self._turns_left}

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Go on from the position."""
        try:
            assert isinstance(snapshot, dict)
            self._begin(task, self._rules.from_json(snapshot["state"]), int(snapshot["turns_left"]))
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentFailed(f"it is no snapshot of {task.environment} ({error!r})") from None

    async def close(self) -> None:
        """Forget the puzzle."""
        self._metadata, self._turns_left = {}, 0

    def _begin(self, task: Task, state: Any, turns_left: int) -> None:
        self._metadata, self._state, self._turns_left = task.payload["metadata"], state, turns_left

    def _board(self) -> str:
        return self._rules.board(self._metadata, self._state)
