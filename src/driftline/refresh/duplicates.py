"""Which proposals are copies: of one another, of what is held out, or of earlier tasks; exact or nearly so.

Two tasks are near duplicates where the Jaccard similarity of their shingles (`SHINGLE_WORDS` words in a row of what
a task holds) reaches a limit. Shingles that many tasks share are the family's boilerplate, and do not count.

Exact, not estimated: candidates come from an inverted index over the rarest shingles of each task. Of two sets that
agree to the share t, the n - ceil(t n) + 1 rarest of the n shingles of each have one in common (prefix filtering,
Chaudhuri et al., ICDE 2006), so those alone are indexed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftline.environment import Task

SHINGLE_WORDS = 3
BOILERPLATE_SHARE = 0.2
"""Shingles in more than this share of all tasks are boilerplate."""
FEWEST_FOR_BOILERPLATE = 20
"""Of fewer tasks, none is."""
ROUNDING = 1e-9
"""What the product of a limit and a count may be too large by: 0.55 x 100 is a little above 55."""

_WORD = re.compile(r"\w+|[^\w\s]")
_PUNCTUATION = frozenset('{}[],:"')
"""What JSON adds to a payload."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A proposal that is left out for its likeness to another task."""

    task_id: str
    of: str
    """Task id of the other."""
    where: str
    """`proposals`, `earlier` or `held-out`."""
    similarity: float
    """1.0 for an exact copy."""


@dataclass(frozen=True, slots=True)
class Distinct:
    """What is left of the proposals."""

    kept: tuple[Task, ...]
    """In the order proposed."""
    dropped: tuple[Duplicate, ...]


def distinct(
    proposed: Sequence[Task], *, held_out: Sequence[Task], earlier: Sequence[Task], limit: float
) -> Distinct:
    """Drop the proposals that are copies, or nearly so; of several alike the first one stays.

    Args:
        proposed: In order.
        held_out: Never to be trained on, nor anything like them.
        earlier: Of earlier versions, those that were retired included.
        limit: Least Jaccard similarity of near duplicates, in (0, 1].
    """
    known = [("held-out", task) for task in held_out] + [("earlier", task) for task in earlier]
    index = _Index(limit, frequencies(task for _, task in [*known, *(("", task) for task in proposed)]))
    for where, task in known:
        index.add(where, task)
    kept: list[Task] = []
    dropped: list[Duplicate] = []
    for task in proposed:
        found = index.like(task)
        if found is None:
            kept.append(task)
            index.add("proposals", task)
        else:
            dropped.append(found)
    return Distinct(tuple(kept), tuple(dropped))


def content_digest(task: Task) -> str:
    """Equal for tasks that hold the same, whatever their ids."""
    text = json.dumps([task.environment, task.payload], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def shingles(task: Task) -> frozenset[str]:
    """The shingles of what a task holds; of a short one, all of it is one shingle."""
    text = json.dumps(task.payload, sort_keys=True, ensure_ascii=False)
    words = [word for word in _WORD.findall(text) if word not in _PUNCTUATION]
    if len(words) < SHINGLE_WORDS:
        return frozenset({" ".join(words)})
    return frozenset(" ".join(words[at : at + SHINGLE_WORDS]) for at in range(len(words) - SHINGLE_WORDS + 1))


def frequencies(tasks: Iterable[Task]) -> Mapping[str, int]:
    """Shingle -> tasks that have it, boilerplate left out. Each task counts once, whatever its copies."""
    seen = {content_digest(task): task for task in tasks}
    counts = Counter(shingle for task in seen.values() for shingle in shingles(task))
    most = len(seen) * BOILERPLATE_SHARE if len(seen) >= FEWEST_FOR_BOILERPLATE else math.inf
    return {shingle: count for shingle, count in counts.items() if count <= most}


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity, in [0, 1]; 0 of nothing."""
    union = len(one | other)
    return len(one & other) / union if union else 0.0


class _Index:
    """Tasks by their content, and by their rarest shingles."""

    def __init__(self, limit: float, counts: Mapping[str, int]) -> None:
        assert 0 < limit <= 1
        self._limit = limit
        self._counts = counts
        self._exact: dict[str, tuple[str, str]] = {}
        self._ids: dict[str, str] = {}
        self._sets: list[tuple[str, str, frozenset[str]]] = []
        self._by_shingle: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, where: str, task: Task) -> None:
        self._exact.setdefault(content_digest(task), (where, task.id))
        self._ids.setdefault(task.id, where)
        found = self._telling(task)
        for shingle in self._rarest(found):
            self._by_shingle[shingle].append(len(self._sets))
        self._sets.append((where, task.id, found))

    def like(self, task: Task) -> Duplicate | None:
        """What a task is a copy of: of the most similar, the first that was added."""
        copied = self._exact.get(content_digest(task))
        if copied is None and task.id in self._ids:
            copied = self._ids[task.id], task.id
        if copied is not None:
            return Duplicate(task.id, copied[1], copied[0], 1.0)
        own = self._telling(task)
        candidates = sorted({place for shingle in self._rarest(own) for place in self._by_shingle.get(shingle, ())})
        best: Duplicate | None = None
        for place in candidates:
            where, other_id, other = self._sets[place]
            alike = similarity(own, other)
            if alike >= self._limit and (best is None or alike > best.similarity):
                best = Duplicate(task.id, other_id, where, alike)
        return best

    def _telling(self, task: Task) -> frozenset[str]:
        """The shingles of a task that are no boilerplate."""
        return frozenset(shingle for shingle in shingles(task) if shingle in self._counts)

    def _rarest(self, found: frozenset[str]) -> list[str]:
        ordered = sorted(found, key=lambda shingle: (self._counts[shingle], shingle))
        return ordered[: len(found) - math.ceil(self._limit * len(found) - ROUNDING) + 1]
