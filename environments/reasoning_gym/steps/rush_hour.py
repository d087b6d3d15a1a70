"""Rush Hour: slide one vehicle along its own line, as far as it is free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, NamedTuple

from environments.reasoning_gym.steps.rules import shortest

SIZE = 6
EXIT = 2 * SIZE + SIZE - 2
"""Where the first square of the first car is when the game is won."""
FREE, WALL = "o", "x"
BOARDS_KEPT = 1024
"""Boards that are read once, and solved once."""
MOVE = re.compile(r"([A-Z])([+-])([1-9])")

Positions = tuple[int, ...]
"""First square of every vehicle, counted row by row."""


class Vehicle(NamedTuple):
    length: int
    stride: int
    """1 lies across, `SIZE` up and down."""


class Layout(NamedTuple):
    """What no move changes."""

    vehicles: tuple[Vehicle, ...]
    walls: frozenset[int]


class RushHour:
    """Vehicles have the letters that the dataset gives them: A is the one to free."""

    how = "Reply with one move: a vehicle's letter, + (right or down) or - (left or up), and how many squares: B-2."

    def start(self, metadata: Mapping[str, Any]) -> Positions:
        return _read(metadata["board_config"])[1]

    def goal(self, metadata: Mapping[str, Any]) -> str:
        return (
            "Move the car AA to the exit at the right end of its row. Each vehicle moves only along its own line; "
            "x is a wall, . is free."
        )

    def moved(self, metadata: Mapping[str, Any], state: Positions, move: str) -> Positions | None:
        found = MOVE.fullmatch(move.upper())
        layout, _ = _read(metadata["board_config"])
        which = ord(found[1]) - ord("A") if found else len(state)
        if found is None or which >= len(state):
            return None
        steps, direction = int(found[3]), 1 if found[2] == "+" else -1
        reachable = list(_slides(layout, state, which, direction, _taken(layout, state)))
        return reachable[steps - 1] if steps <= len(reachable) else None

    def solved(self, metadata: Mapping[str, Any], state: Positions) -> bool:
        return state[0] == EXIT

    def board(self, metadata: Mapping[str, Any], state: Positions) -> str:
        layout, _ = _read(metadata["board_config"])
        signs = ["."] * SIZE * SIZE
        for square in layout.walls:
            signs[square] = WALL
        for index, (vehicle, first) in enumerate(zip(layout.vehicles, state, strict=True)):
            for square in _squares(vehicle, first):
                signs[square] = chr(ord("A") + index)
        return "\n".join("".join(signs[row : row + SIZE]) for row in range(0, SIZE * SIZE, SIZE))

    def solution(self, entry: Mapping[str, Any]) -> list[str]:
        return list(_solution(entry["metadata"]["board_config"]))

    def to_json(self, state: Positions) -> list[int]:
        return list(state)

    def from_json(self, value: Any) -> Positions:
        return tuple(int(one) for one in value)


@lru_cache(BOARDS_KEPT)
def _read(config: str) -> tuple[Layout, Positions]:
    """The layout of a board of 36 letters, and where the vehicles are at first."""
    places: dict[str, list[int]] = {}
    for square, sign in enumerate(config):
        places.setdefault(sign, []).append(square)
    walls = frozenset(places.pop(WALL, []))
    places.pop(FREE, None)
    ordered = [places[sign] for sign in sorted(places)]
    vehicles = tuple(Vehicle(len(squares), squares[1] - squares[0]) for squares in ordered)
    return Layout(vehicles, walls), tuple(squares[0] for squares in ordered)


def _squares(vehicle: Vehicle, first: int) -> range:
    return range(first, first + vehicle.length * vehicle.stride, vehicle.stride)


def _taken(layout: Layout, state: Positions) -> set[int]:
    squares = set(layout.walls)
    for vehicle, first in zip(layout.vehicles, state, strict=True):
        squares.update(_squares(vehicle, first))
    return squares


def _slides(
    layout: Layout, state: Positions, which: int, direction: int, taken: AbstractSet[int]
) -> Iterable[Positions]:
    """The states after one square, two squares and so on, as far as the way is free."""
    vehicle, first = layout.vehicles[which], state[which]
    edge = first + (vehicle.length - 1) * vehicle.stride if direction > 0 else first
    step = direction * vehicle.stride
    while True:
        ahead = edge + step
        same_line = ahead // SIZE == edge // SIZE if vehicle.stride == 1 else 0 <= ahead < SIZE * SIZE
        if not same_line or ahead in taken:
            return
        edge, first = ahead, first + step
        yield (*state[:which], first, *state[which + 1 :])


@lru_cache(BOARDS_KEPT)
def _solution(config: str) -> tuple[str, ...]:
    layout, start = _read(config)

    def options(state: Positions) -> Iterable[tuple[str, Positions]]:
        taken = _taken(layout, state)
        for which in range(len(state)):
            for sign, direction in (("+", 1), ("-", -1)):
                for steps, following in enumerate(_slides(layout, state, which, direction, taken), start=1):
                    yield f"{chr(ord('A') + which)}{sign}{steps}", following

    return tuple(shortest(start, lambda state: state[0] == EXIT, options) or ())
