"""Which tasks a version holds, in which pool each is, and how often each pool is drawn from.

    solve rate    0 ......... low ............................ high ......... 1
    pool          too hard    |            useful              |   too easy   retired
                                        unmeasured

A group teaches something only where its members' rewards differ, so most groups are drawn from the useful pool. What
is always solved is retired. Of what is never solved a share is kept: the policy gets better. A task that was not
measured is expected to be as difficult as its level; where that is not known either, it is in a pool of its own, so
that it is tried soon and the useful ones are not crowded out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from driftline.environment import Task
from driftline.refresh.solving import SolveRate

Pool = Literal["too_hard", "useful", "too_easy", "unmeasured"]
POOLS: tuple[Pool, ...] = ("useful", "unmeasured", "too_hard", "too_easy")
"""In the order in which a version is filled."""

WEIGHTS: Mapping[str, float] = {"useful": 0.7, "unmeasured": 0.2, "too_hard": 0.05, "too_easy": 0.05}
"""Share of the groups drawn from each pool, unless told otherwise."""

ALWAYS_SOLVED = "always solved"
NEVER_SOLVED = "never solved, or not expected to be, beyond the share that is kept"
NO_ROOM = "no room: others are more useful"


@dataclass(frozen=True, slots=True)
class CurationRules:
    """The target band, and what becomes of what lies outside of it."""

    low: float = 0.2
    high: float = 0.8
    """Useful are solve rates in [low, high]."""
    fewest_attempts: int = 4
    """Of fewer, nothing is known of a task."""
    fewest_of_level: int = 32
    """Of fewer, nothing is known of a level."""
    never_solved_share: float = 0.1
    """Most of a version, as a share of its size, that may be tasks which were never solved."""
    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    """Share of the groups drawn from each pool; of a pool that is empty, the others take it in proportion."""


@dataclass(frozen=True, slots=True)
class Change:
    """A task that came or went, and why."""

    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Curated:
    """The tasks of a version."""

    pools: Mapping[str, Pool]
    """Task id -> pool, sorted by id."""
    weights: Mapping[str, float]
    """Pool -> share of the groups drawn from it; pools that hold no task are missing. Sums to 1."""
    came: tuple[Change, ...]
    went: tuple[Change, ...]


def pool_of(rate: SolveRate | None, rules: CurationRules) -> Pool | None:
    """The pool of a task, by its solve rate; None for one that is always solved."""
    if rate is None or rate.attempts < rules.fewest_attempts:
        return "unmeasured"
    if rate.solved == rate.attempts:
        return None
    if rate.share < rules.low:
        return "too_hard"
    return "useful" if rate.share <= rules.high else "too_easy"


def expected_pool(level: SolveRate | None, rules: CurationRules) -> Pool:
    """The pool of a task that was not measured, by the solve rate of its level. Nothing is retired on expectation."""
    if level is None or level.attempts < rules.fewest_of_level:
        return "unmeasured"
    if level.share < rules.low:
        return "too_hard"
    return "useful" if level.share <= rules.high else "too_easy"


def curate(
    parent: Sequence[Task],
    proposed: Sequence[Task],
    rates: Mapping[str, SolveRate],
    *,
    size: int,
    rules: CurationRules,
    seed: int,
    expected: Mapping[str, SolveRate] | None = None,
) -> Curated:
    """Choose the tasks of a version.

    Args:
        parent: Tasks of the version before, none for the first one.
        proposed: New tasks, distinct from one another and from those.
        rates: Task id -> solve rate of the current policy, where it was measured.
        size: Most tasks of the version.
        rules: The target band.
        seed: Decides which of several tasks that are alike stay.
        expected: Task id -> solve rate of its level, where that is known.

    Returns:
        It; without tasks if all are always solved.
    """
    assert size > 0
    before = {task.id for task in parent}
    levels, candidates = expected or {}, dict[str, Pool | None]()
    for task in [*parent, *proposed]:
        pool = pool_of(rates.get(task.id), rules)
        candidates[task.id] = expected_pool(levels.get(task.id), rules) if pool == "unmeasured" else pool
    chosen, left_out = _fill(candidates, rates, size, rules, seed)
    pools = dict(sorted(chosen.items()))
    came = tuple(Change(task.id, _known(rates.get(task.id))) for task in proposed if task.id in pools)
    went = tuple(Change(task.id, left_out[task.id]) for task in parent if task.id not in pools)
    assert not before & {change.task_id for change in came}
    return Curated(pools, weights_of(Counter(pools.values()), rules), came, went)


def weights_of(counts: Mapping[Pool, int], rules: CurationRules) -> dict[str, float]:
    """Pool -> share of the groups, over pools that hold tasks and have a weight; all alike if none has one."""
    held: list[Pool] = [pool for pool in POOLS if counts.get(pool)]
    total = sum(rules.weights.get(pool, 0.0) for pool in held)
    if total <= 0:
        return {pool: 1 / len(held) for pool in held}
    return {pool: rules.weights[pool] / total for pool in held if rules.weights.get(pool, 0.0) > 0}


def _fill(
    candidates: Mapping[str, Pool | None],
    rates: Mapping[str, SolveRate],
    size: int,
    rules: CurationRules,
    seed: int,
) -> tuple[dict[str, Pool], dict[str, str]]:
    """Fill a version pool by pool; returns the pools of what is in it, and why the rest is not."""
    chosen: dict[str, Pool] = {}
    left_out = {task_id: ALWAYS_SOLVED for task_id, pool in candidates.items() if pool is None}
    for pool in POOLS:
        members = [task_id for task_id, found in candidates.items() if found == pool]
        members.sort(key=lambda task_id: _lot(seed, task_id))
        if pool == "too_hard":
            never = [one for one in members if rates.get(one, SolveRate()).solved == 0]
            beyond = never[round(size * rules.never_solved_share) :]
            left_out |= dict.fromkeys(beyond, NEVER_SOLVED)
            members = [task_id for task_id in members if task_id not in left_out]
        room = size - len(chosen)
        chosen |= dict.fromkeys(members[:room], pool)
        left_out |= dict.fromkeys(members[room:], NO_ROOM)
    return chosen, left_out


def _lot(seed: int, task_id: str) -> str:
    return hashlib.sha256(f"{seed}:{task_id}".encode()).hexdigest()


def _known(rate: SolveRate | None) -> str:
    return "unmeasured" if rate is None or not rate.attempts else f"solved {rate.solved} of {rate.attempts}"
