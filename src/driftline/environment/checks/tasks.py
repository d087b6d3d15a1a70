"""Checks of ids and tasks: nothing is played."""

from __future__ import annotations

import json
import re

from driftline.environment.abilities import GradedFamily
from driftline.environment.checks.findings import Broken, Case, NotApplicable, ensure, short
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
    more = some(case, MANY)
    ensure(len({task.id for task in more}) == len(more), f"generate({case.seed}, {len(more)}) returned a task twice")


def levels(case: Case) -> None:
    """Tasks of a level are of that level, and follow from the seed."""
    family = case.family
    if not isinstance(family, GradedFamily):
        raise NotApplicable("the family has no levels of difficulty")
    ensure(family.levels >= 1, f"levels is {family.levels}")
    for level in sorted({0, family.levels - 1}):
        first, again = (family.generate_level(level, case.seed, 1) for _ in range(2))
        ensure(len(first) == 1, f"generate_level({level}, {case.seed}, 1) returned {len(first)} tasks")
        ensure(first == again, f"generate_level({level}, {case.seed}, 1) gives another task the second time")
        found = family.level_of(first[0])
        ensure(found == level, f"level_of says {found} of a task that was made for level {level}")
    try:
        beyond = family.generate_level(family.levels, case.seed, 1)
    except ConfigurationError:
        return
    raise Broken(f"generate_level({family.levels}, ...) returned {len(beyond)} tasks, and levels is {family.levels}")


def some(case: Case, count: int) -> list[Task]:
    """So many tasks, or fewer where the family has not so many."""
    try:
        return case.family.generate(case.seed, count)
    except ConfigurationError:
        return list(case.tasks)
