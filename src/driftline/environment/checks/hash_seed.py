"""The check that nothing depends on PYTHONHASHSEED: two processes with different seeds play the same.

What each of them runs is `hash_seed_child`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftline.environment.apart import run_apart
from driftline.environment.checks.findings import Broken, Case, ensure, first_difference, short
from driftline.errors import EnvironmentFailed

SEEDS = ("1", "2")
START_S = 120.0
FAMILY_S = 60.0
"""Beside the start, for each family."""
MODULE = "driftline.environment.checks.hash_seed_child"

Records = Mapping[str, Any]
"""Name of a family -> ids and episodes, or `error`."""


def play_under_seeds(names: Sequence[str], *, seed: int, tasks: int, deadline_s: float) -> tuple[Records, ...]:
    """What families say in two processes, one for each hash seed.

    Raises:
        Broken: A process failed, or took too long.
    """
    request = {"names": list(names), "seed": seed, "tasks": tasks, "deadline_s": deadline_s}
    timeout_s = START_S + FAMILY_S * len(names)
    try:
        return tuple(run_apart(MODULE, request, hash_seed=one, timeout_s=timeout_s) for one in SEEDS)
    except EnvironmentFailed as error:
        raise Broken(f"a process that plays the tasks: {error}") from None


def hash_seed(case: Case, records: Sequence[Records]) -> None:
    """Ids and episodes are equal in both, and as here."""
    first, second = (one[case.name] for one in records)
    for record in (first, second):
        ensure("error" not in record, f"in a process of its own: {record.get('error')}")
    own = [task.id for task in case.tasks]
    for ids in (first["ids"], second["ids"]):
        ensure(ids == own, f"the ids of tasks depend on PYTHONHASHSEED: {short(own)}, then {short(ids)}")
    for task, one, other in zip(case.tasks, first["episodes"], second["episodes"], strict=True):
        difference = first_difference(one, other)
        ensure(not difference, f"task {task.id} depends on PYTHONHASHSEED: it differs at {difference}")
