"""Which groups lie in which object that a cell has written, so that they can be played again."""

from __future__ import annotations

from collections.abc import Iterable

REMEMBERED = 512
"""Objects of which a cell knows the groups, the newest."""


class WrittenObjects:
    """The last objects of a cell, by key."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._groups: dict[str, list[int]] = {}

    def note(self, key: str, groups: Iterable[int]) -> None:
        """Groups with these numbers are written as one object; of too many objects the oldest is forgotten."""
        self._groups[key] = [*groups]
        if len(self._groups) > self._remembered:
            del self._groups[next(iter(self._groups))]

    def take(self, keys: Iterable[str]) -> dict[str, list[int]]:
        """Key -> numbers of its groups, of those keys that are known; they are known no more."""
        return {key: self._groups.pop(key) for key in keys if key in self._groups}
