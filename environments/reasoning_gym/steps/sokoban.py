"""Sokoban: one step L, R, U or D, pushing the box that is in the way if there is room behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Board = tuple[str, ...]
"""Rows of signs: * player, % player on a goal, @ box, $ box on a goal, X goal, + wall, - floor."""

DIRECTIONS: Mapping[str, tuple[int, int]] = {"L": (0, -1), "R": (0, 1), "U": (-1, 0), "D": (1, 0)}
WORDS: Mapping[str, str] = {"LEFT": "L", "RIGHT": "R", "UP": "U", "DOWN": "D"}
ON_GOAL: Mapping[str, str] = {"*": "%", "@": "$", "-": "X"}
OFF_GOAL: Mapping[str, str] = {on: off for off, on in ON_GOAL.items()}


class Sokoban:
    """The dataset's signs and its solutions."""

    how = "Reply with one move: L, R, U or D."

    def start(self, metadata: Mapping[str, Any]) -> Board:
        lines = metadata["gamestr"].replace(" ", "").strip().split("\n")
        return tuple(line for line in lines if line)

    def goal(self, metadata: Mapping[str, Any]) -> str:
        return (
            "Push every box onto a goal. * is you, % you on a goal, @ a box, $ a box on a goal, X a goal, + a wall, "
            "- free floor."
        )

    def moved(self, metadata: Mapping[str, Any], state: Board, move: str) -> Board | None:
        move = move.upper()
        direction = DIRECTIONS.get(WORDS.get(move, move))
        if direction is None:
            return None
        squares = {(row, column): sign for row, line in enumerate(state) for column, sign in enumerate(line)}
        here = next(place for place, sign in squares.items() if sign in "*%")
        target = (here[0] + direction[0], here[1] + direction[1])
        behind = (target[0] + direction[0], target[1] + direction[1])
        if squares.get(target, "+") == "+":
            return None
        if squares[target] in "@$":
            if squares.get(behind, "+") not in "-X":
                return None
            squares[behind] = _put("@", squares[behind])
            squares[target] = _put("-", squares[target])
        squares[target] = _put("*", squares[target])
        squares[here] = _put("-", squares[here])
        return tuple("".join(squares[row, column] for column in range(len(line))) for row, line in enumerate(state))

    def solved(self, metadata: Mapping[str, Any], state: Board) -> bool:
        return not any("@" in line for line in state)

    def board(self, metadata: Mapping[str, Any], state: Board) -> str:
        return "\n".join(state)

    def solution(self, entry: Mapping[str, Any]) -> list[str]:
        return list(entry["answer"])

    def to_json(self, state: Board) -> list[str]:
        return list(state)

    def from_json(self, value: Any) -> Board:
        return tuple(str(line) for line in value)


def _put(sign: str, before: str) -> str:
    """A sign without a goal, on a square that keeps its goal."""
    return ON_GOAL[sign] if before in OFF_GOAL else sign
