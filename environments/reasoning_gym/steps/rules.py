"""What a board game is to the environment that plays it move by move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

StateT = TypeVar("StateT", bound=Hashable)

Json = Any


class Rules(Protocol[StateT]):
    """A game with one player. States are JSON values or made of them; `metadata` is that of the dataset's entry."""

    @property
    def how(self) -> str:
        """What a move looks like, for the prompt."""
        ...

    def start(self, metadata: Mapping[str, Any]) -> StateT:
        """The state before the first move."""
        ...

    def goal(self, metadata: Mapping[str, Any]) -> str:
        """What is to be reached, and what the signs on the board mean."""
        ...

    def moved(self, metadata: Mapping[str, Any], state: StateT, move: str) -> StateT | None:
        """The state after a move; None if it is none, or is against the rules."""
        ...

    def solved(self, metadata: Mapping[str, Any], state: StateT) -> bool:
        """Whether the goal is reached."""
        ...

    def board(self, metadata: Mapping[str, Any], state: StateT) -> str:
        """The board as the policy sees it."""
        ...

    def solution(self, entry: Mapping[str, Any]) -> list[str]:
        """Moves that solve the entry."""
        ...

    def to_json(self, state: StateT) -> Json:
        """The state as a JSON value."""
        ...

    def from_json(self, value: Json) -> StateT:
        """The state again.

        Raises:
            ValueError: It is none; KeyError and TypeError likewise.
        """
        ...


def shortest(
    start: StateT, solved: Callable[[StateT], bool], options: Callable[[StateT], Iterable[tuple[str, StateT]]]
) -> list[str] | None:
    """Breadth first: the fewest moves to a solved state, or None if there is none."""
    came_from: dict[StateT, tuple[StateT, str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        if solved(state):
            return _moves_to(state, came_from)
        for move, following in options(state):
            if following not in came_from:
                came_from[following] = (state, move)
                waiting.append(following)
    return None


def _moves_to(state: StateT, came_from: Mapping[StateT, tuple[StateT, str] | None]) -> list[str]:
    moves: list[str] = []
    step = came_from[state]
    while step is not None:
        state, move = step
        moves.append(move)
        step = came_from[state]
    return moves[::-1]
