"""What a group number stands for: a task, and the seeds of its members' requests. Pure.

Group `g` plays a task by a function of (seed, g, task-set version, number of tasks) alone, so every cell, and a
run that is repeated or resumed, assigns the same. The seeds do not depend on the run's name either: the same seed
gives the same rewards in another run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from random import Random

SEED_BITS = 63
"""Engines take a signed 64-bit seed."""


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


def request_seed(seed: int, group: int, member: int, turn: int, part: int = 0) -> int:
    """Seed of one request. `part` tells apart the requests of a turn that the engine answered in pieces."""
    return _hash("request", seed, group, member, turn, part)


def environment_seed(seed: int, group: int) -> int:
    """Seed of the environment's `reset`: one for the whole group, whose members start alike."""
    return _hash("environment", seed, group)


@lru_cache(maxsize=8)
def _order(seed: int, pass_number: int, task_set: str, tasks: int) -> tuple[int, ...]:
    order = list(range(tasks))
    Random(f"{seed}:{pass_number}:{task_set}").shuffle(order)
    return tuple(order)


def _hash(*parts: object) -> int:
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> (64 - SEED_BITS)
