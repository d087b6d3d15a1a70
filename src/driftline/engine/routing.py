"""Which of several engines a request goes to. Pure decisions; `driftline.engine.pool` carries them out.

A prompt that an engine has seen is in its prefix cache: the next turn of an episode, and the next member of a group,
are cheapest where the last one ran. Each request names what it shares a prefix with (`GenerationRequest.affinity`),
and `Holders` remembers who sampled that. An entry is worth something only within its policy version, as each
version salts its prompts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftline.records import PolicyVersion

HOLDERS_REMEMBERED = 16384


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine as routing sees it."""

    index: int
    serving: bool
    """It is alive, and has proven the weights it holds."""
    version: PolicyVersion | None
    load: int
    """Requests given to it that have not returned."""
    held: int = 0
    """Prefixes it is remembered to hold; decides between engines of equal load."""


@dataclass(frozen=True, slots=True)
class RoutingBounds:
    """When an engine is full, and when a prefix is not worth the wait for it."""

    capacity: int
    """Requests that one engine runs at once."""
    spill_beyond: int
    """So many requests more than the least loaded engine may the holder of a prefix have."""


def route(
    engines: Sequence[EngineView], newest: PolicyVersion | None, holders: Sequence[int], bounds: RoutingBounds
) -> int | None:
    """Choose the engine for a request.

    An engine that holds `newest` and has room comes before one that has room and another version (an update is on
    its way to it), and that before a full one. Among equals the first of `holders` wins which is not overloaded, and
    else the least loaded.

    Args:
        engines: All of them.
        newest: The version that was acknowledged last by any of them.
        holders: Indices of those that hold a prefix of the request, the longest prefix first.
        bounds: Their capacity, and how far prefixes may unbalance them.

    Returns:
        Its index, or None if no engine serves.
    """
    serving = [engine for engine in engines if engine.serving]
    current = [engine for engine in serving if engine.version == newest]
    candidates = _with_room(current, bounds) or _with_room(serving, bounds) or current or serving
    if not candidates:
        return None
    least = min(candidates, key=lambda engine: (engine.load, engine.held, engine.index))
    loads = {engine.index: engine.load for engine in candidates}
    kept = (index for index in holders if index in loads and loads[index] - least.load <= bounds.spill_beyond)
    return next(kept, least.index)


def stalled_since(tokens: int, load: int, now: float, before: tuple[int, float]) -> tuple[int, float]:
    """The engine's tokens, and since when it has made none although it has requests.

    Args:
        tokens: Its counter of sampled tokens.
        load: Its requests.
        now: The time, in seconds.
        before: What this function returned when the engine was looked at last.
    """
    return before if load and tokens == before[0] else (tokens, now)


class Holders:
    """Which engine holds which prefix, of which version: the last `remembered` ones, by their names."""

    def __init__(self, remembered: int = HOLDERS_REMEMBERED) -> None:
        self._remembered = remembered
        self._entries: OrderedDict[str, tuple[int, PolicyVersion | None]] = OrderedDict()
        self._held: Counter[int] = Counter()

    def find(self, names: Sequence[str], versions: Mapping[int, PolicyVersion | None]) -> list[int]:
        """Engines that hold these prefixes, in the order of the names.

        Args:
            names: The prefixes.
            versions: What each engine holds now; entries of another version, or of an engine not named, are void.
        """
        found = (self._entries.get(name) for name in names)
        return [entry[0] for entry in found if entry is not None and _valid(entry, versions)]

    def note(self, names: Sequence[str], index: int, versions: Mapping[int, PolicyVersion | None]) -> None:
        """An engine samples a request: it holds the longest prefix now, and the others unless another one does."""
        for place, name in enumerate(names):
            entry = self._entries.get(name)
            if place == 0 or entry is None or not _valid(entry, versions):
                self._remove(name)
                self._entries[name] = (index, versions[index])
                self._held[index] += 1
            else:
                self._entries.move_to_end(name)
        while len(self._entries) > self._remembered:
            self._remove(next(iter(self._entries)))

    def forget(self, index: int) -> None:
        """An engine is gone, with all it held."""
        for name in [name for name, entry in self._entries.items() if entry[0] == index]:
            self._remove(name)

    def held(self, index: int) -> int:
        """How many prefixes are remembered of an engine."""
        return self._held[index]

    def _remove(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._held[entry[0]] -= 1


def _with_room(engines: Sequence[EngineView], bounds: RoutingBounds) -> list[EngineView]:
    return [engine for engine in engines if engine.load < bounds.capacity]


def _valid(entry: tuple[int, PolicyVersion | None], versions: Mapping[int, PolicyVersion | None]) -> bool:
    index, version = entry
    return index in versions and versions[index] == version
