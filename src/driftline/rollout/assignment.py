"""What a group number stands for: a task, and the seeds of its members' requests. Pure.

Group `g` plays a task by a function of (seed, g, task-set version, number of tasks) alone, so every cell, and a
run that is repeated or resumed, assigns the same. Where tasks are sampled by learnability, the weights that HEAD
names for `g` are an argument too; they come of the steps before. The seeds do not depend on the run's name either:
the same seed gives the same rewards in another run.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random

from driftline.records import TaskSampling

SEED_BITS = 63
"""Engines take a signed 64-bit seed."""
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
ENOUGH_TASKS = 16
"""Of a stratum. With fewer its share is smaller in proportion, so that they are not played over and over."""
BLOCK_GROUPS = 64
"""Each block of so many groups is drawn from the pools in exactly the same numbers."""


def task_set_of(task_sets: Sequence[tuple[int, str]], group: int) -> str:
    """The task-set version that group number `group` draws from.

    Args:
        task_sets: HEAD's pairs (first group, version), in ascending order; the first begins at 0.
        group: Group number.
    """
    version = [version for first, version in task_sets if first <= group]
    assert version, f"no task set covers group {group}: {task_sets}"
    return version[-1]


def task_index(seed: int, group: int, task_set: str, tasks: int) -> int:
    """Index of the task that group number `group` plays, in [0, tasks).

    Each pass over the task set plays every task once, in an order of its own.
    """
    pass_number, position = divmod(group, tasks)
    return _order(seed, pass_number, task_set, tasks)[position]


def pooled_task_index(
    seed: int, group: int, task_set: str, pools: Mapping[str, Sequence[int]], weights: Mapping[str, float]
) -> int:
    """Index of the task that group number `group` plays where the task set has pools.

    Of each `BLOCK_GROUPS` groups every pool has its share, rounded, at least one; which groups those are is shuffled.
    Each pass over a pool plays every task of it once, in an order of its own.

    Args:
        seed: Of the run.
        group: Group number.
        task_set: Version.
        pools: Pool -> indices of its tasks.
        weights: Pool -> share of the groups, above 0; pools without one are not drawn from.
    """
    counts = block_counts(tuple(sorted(weights.items())))
    block, place = divmod(group, BLOCK_GROUPS)
    order = _block(seed, block, task_set, counts)
    pool = order[place]
    rank = block * dict(counts)[pool] + order[:place].count(pool)
    return pools[pool][task_index(seed, rank, f"{task_set}/{pool}", len(pools[pool]))]


def sampling_of(task_sampling: Sequence[TaskSampling], group: int) -> TaskSampling | None:
    """How group number `group` samples its task; None is by the pools' weights.

    Args:
        task_sampling: HEAD's, in ascending order of their first groups.
        group: Group number.
    """
    begun = [sampling for sampling in task_sampling if sampling.first <= group]
    return begun[-1] if begun else None


def stratified_task_index(
    seed: int,
    group: int,
    task_set: str,
    strata: Mapping[str, Sequence[int]],
    sampling: TaskSampling,
    shares: Mapping[str, float],
) -> int:
    """Index of the task that group number `group` plays where strata are sampled by weights.

    A stratum is drawn in proportion to its weight times its share, one of few tasks less often. Consecutive groups
    step through the strata by the golden ratio (an additive recurrence of low discrepancy), so that any few of them
    come close to the proportions, whatever the weights before. Within each pass of as many groups as a stratum has
    tasks, none of them is played twice.

    Args:
        seed: Of the run.
        group: Group number.
        task_set: Version.
        strata: Stratum -> indices of its tasks; none is empty.
        sampling: Weights.
        shares: Stratum -> how much of it the run is about, above 0 (`strata.shares`).
    """
    names = sorted(strata)
    reached = list(
        accumulate(
            sampling.weights.get(name, sampling.unseen) * shares[name] * min(len(strata[name]), ENOUGH_TASKS)
            for name in names
        )
    )
    place = (_hash("stratum", seed) / 2**SEED_BITS + group * GOLDEN_RATIO) % 1.0
    stratum = names[min(bisect_right(reached, place * reached[-1]), len(names) - 1)]
    return strata[stratum][task_index(seed, group, f"{task_set}/{stratum}", len(strata[stratum]))]


@lru_cache(maxsize=64)
def block_counts(weights: tuple[tuple[str, float], ...]) -> tuple[tuple[str, int], ...]:
    """How many groups of a block each pool has: one, and of the rest its share, by largest remainders.

    Args:
        weights: (pool, weight), sorted by pool.
    """
    assert 0 < len(weights) <= BLOCK_GROUPS
    rest, total = BLOCK_GROUPS - len(weights), math.fsum(weight for _, weight in weights)
    # Weights of 1/64 get the one group they have anyway.
    above = [max(0.0, weight / total * BLOCK_GROUPS - 1) for _, weight in weights]
    shares = [share / (math.fsum(above) or 1.0) * rest for share in above]
    counts = [1 + math.floor(share) for share in shares]
    by_remainder = sorted(range(len(weights)), key=lambda at: (math.floor(shares[at]) - shares[at], at))
    for at in by_remainder[: BLOCK_GROUPS - sum(counts)]:
        counts[at] += 1
    return tuple((pool, count) for (pool, _), count in zip(weights, counts, strict=True))


def request_seed(seed: int, group: int, member: int, turn: int, part: int = 0) -> int:
    """Seed of one request. `part` tells apart the requests of a turn that the engine answered in pieces."""
    return _hash("request", seed, group, member, turn, part)


def environment_seed(seed: int, group: int) -> int:
    """Seed of the environment's `reset`: one for the whole group, whose members start alike."""
    return _hash("environment", seed, group)


@lru_cache(maxsize=32)
def _order(seed: int, pass_number: int, task_set: str, tasks: int) -> tuple[int, ...]:
    order = list(range(tasks))
    Random(f"{seed}:{pass_number}:{task_set}").shuffle(order)
    return tuple(order)


@lru_cache(maxsize=64)
def _block(seed: int, block: int, task_set: str, counts: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """The pools of a block's groups, in order."""
    order = [pool for pool, count in counts for _ in range(count)]
    Random(f"{seed}:block {block}:{task_set}").shuffle(order)
    return tuple(order)


def _hash(*parts: object) -> int:
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> (64 - SEED_BITS)
