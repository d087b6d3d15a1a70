"""The tower of Hanoi: one disk from the top of a peg to another peg, never onto a smaller one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Pegs = tuple[tuple[int, ...], ...]
"""Disks of every peg, bottom first; 1 is the smallest."""

MOVE = re.compile(r"(?:move disk (\d{1,3}) from peg )?(\d{1,3})(?: to peg |\s*->\s*|\s+)(\d{1,3})", re.IGNORECASE)


class Hanoi:
    """Takes the dataset's own sentences as well as `1 3`."""

    how = "Reply with one move: the peg to take from and the peg to put on, such as 1 3."

    def start(self, metadata: Mapping[str, Any]) -> Pegs:
        tower = tuple(range(metadata["num_disks"], 0, -1))
        return tuple(tower if peg == metadata["start_peg"] else () for peg in _pegs(metadata))

    def goal(self, metadata: Mapping[str, Any]) -> str:
        return (
            f"Move all {metadata['num_disks']} disks from peg {metadata['start_peg']} to peg "
            f"{metadata['target_peg']}, one at a time, never a larger disk onto a smaller one. "
            "Each line is a peg, bottom first; 1 is the smallest disk."
        )

    def moved(self, metadata: Mapping[str, Any], state: Pegs, move: str) -> Pegs | None:
        found = MOVE.fullmatch(move)
        if found is None:
            return None
        source, target = int(found[2]) - 1, int(found[3]) - 1
        if not (0 <= source < len(state) and 0 <= target < len(state)) or source == target or not state[source]:
            return None
        disk = state[source][-1]
        named = found[1]
        if (named is not None and int(named) != disk) or (state[target] and state[target][-1] < disk):
            return None
        pegs = list(state)
        pegs[source], pegs[target] = state[source][:-1], (*state[target], disk)
        return tuple(pegs)

    def solved(self, metadata: Mapping[str, Any], state: Pegs) -> bool:
        return len(state[metadata["target_peg"] - 1]) == metadata["num_disks"]

    def board(self, metadata: Mapping[str, Any], state: Pegs) -> str:
        return "\n".join(
            f"peg {peg}: {' '.join(map(str, disks))}".rstrip() for peg, disks in enumerate(state, start=1)
        )

    def solution(self, entry: Mapping[str, Any]) -> list[str]:
        return str(entry["answer"]).split("\n")

    def to_json(self, state: Pegs) -> list[list[int]]:
        return [list(disks) for disks in state]

    def from_json(self, value: Any) -> Pegs:
        return tuple(tuple(int(disk) for disk in disks) for disks in value)


def _pegs(metadata: Mapping[str, Any]) -> range:
    return range(1, metadata["num_pegs"] + 1)
