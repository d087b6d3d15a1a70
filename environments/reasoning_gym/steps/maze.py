"""The maze: one square up, down, left or right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from environments.reasoning_gym.steps.rules import shortest

Square = tuple[int, int]
"""Row and column."""

DIRECTIONS: Mapping[str, Square] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Maze:
    """The dataset's own signs, which differ from task to task; the sign of the start moves along."""

    how = "Reply with one move: up, down, left or right."

    def start(self, metadata: Mapping[str, Any]) -> Square:
        return _find(metadata, metadata["start"])

    def goal(self, metadata: Mapping[str, Any]) -> str:
        return (
            f"Walk from {metadata['start']!r}, where you are, to {metadata['goal']!r}. "
            f"{metadata['wall']!r} is a wall, {metadata['path']!r} a passage."
        )

    def moved(self, metadata: Mapping[str, Any], state: Square, move: str) -> Square | None:
        direction = DIRECTIONS.get(move.lower())
        if direction is None:
            return None
        row, column = state[0] + direction[0], state[1] + direction[1]
        grid: list[str] = metadata["grid"]
        inside = 0 <= row < len(grid) and 0 <= column < len(grid[row])
        return (row, column) if inside and grid[row][column] != metadata["wall"] else None

    def solved(self, metadata: Mapping[str, Any], state: Square) -> bool:
        return state == _find(metadata, metadata["goal"])

    def board(self, metadata: Mapping[str, Any], state: Square) -> str:
        rows = [list(row.replace(metadata["start"], metadata["path"])) for row in metadata["grid"]]
        rows[state[0]][state[1]] = metadata["start"]
        return "\n".join("".join(row) for row in rows)

    def solution(self, entry: Mapping[str, Any]) -> list[str]:
        metadata = entry["metadata"]

        def options(state: Square) -> Iterable[tuple[str, Square]]:
            for name in DIRECTIONS:
                following = self.moved(metadata, state, name)
                if following is not None:
                    yield name, following

        goal = _find(metadata, metadata["goal"])
        return shortest(self.start(metadata), lambda state: state == goal, options) or []

    def to_json(self, state: Square) -> list[int]:
        return list(state)

    def from_json(self, value: Any) -> Square:
        row, column = value
        return int(row), int(column)


def _find(metadata: Mapping[str, Any], sign: str) -> Square:
    return next((row, text.index(sign)) for row, text in enumerate(metadata["grid"]) if sign in text)
