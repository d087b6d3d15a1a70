"""Which cell of how many a cell is."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CellPlace:
    """A cell's place among the cells of its run."""

    name: str
    index: int
    cells: int


def place_of(cell: str, cells: int) -> CellPlace:
    """The place of a cell by its name: its index is the number that the name ends with (`c1`), 0 without one."""
    number = re.search(r"[0-9]+$", cell)
    return CellPlace(cell, int(number[0]) % cells if number else 0, cells)
