"""Checks of ids and tasks: nothing is played."""

from __future__ import annotations

import json
import re

from driftline.environment.checks.findings import Case, ensure, short
from driftline.environment.contract import Task
from driftline.errors import ConfigurationError

VERSIONED = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*/v[1-9][0-9]*")
MANY = 16


def versioned_id(case: Case) -> None:
    """The id ends in a version, and tasks carry it."""
    own = case.family.id
    ensure(VERSIONED.fullmatch(own) is not None, f"the id is {own!r}")
    ensure(":" in case.name or case.name == own, f"it is registered as {case.name!r}, and its id is {own!r}")
    others = sorted({task.environment for task in case.tasks} - {own})
    ensure(not others, f"the id is {own!r}, and tasks carry {short(others)}")


def task_id(case: Case) -> None:
    """A task's id is the hash of its state, and the state is JSON."""
    for task in case.tasks:
        ensure(json.loads(json.dumps(task.payload)) == task.payload, f"the payload of task {task.id} is not JSON")
        right = Task.create(task.environment, task.payload).id
        ensure(task.id == right, f"a task has the id {task.id}, and its state hashes to {right}")
    ids = [task.id for task in case.tasks]
    ensure(len(set(ids)) == len(ids), f"generate returned a task twice: {short(ids)}")


def tasks_of_a_seed(case: Case) -> None:
    """`generate` is a function of its arguments."""
    count = len(case.tasks)
    again = case.family.generate(case.seed, count)
    ensure(len(again) == count, f"generate({case.seed}, {count}) returned {len(again)} tasks")
    for before, after in zip(case.tasks, again, strict=True):
        ensure(before == after, f"generate({case.seed}, {count}) gave {short(before.id)}, then {short(after.id)}")
    more = _some(case, MANY)
    ensure(len({task.id for task in more}) == len(more), f"generate({case.seed}, {len(more)}) returned a task twice")


def _some(case: Case, count: int) -> list[Task]:
    """So many tasks, or fewer where the family has not so many."""
    try:
        return case.family.generate(case.seed, count)
    except ConfigurationError:
        return list(case.tasks)
