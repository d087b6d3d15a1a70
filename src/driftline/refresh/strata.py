"""Strata of a task set: tasks of one environment that are expected to be as hard as one another.

Those of one level of difficulty, where the family has levels; else those of one pool, where a refresh has curated the
version; else all. What the policy's success on some says of the others is what a run samples tasks by
(`environment.task_sampling`), and what a refresh proposes by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from driftline.environment import Task
from driftline.store.tasksets import TaskSet

LevelOf = Callable[[Task], int | None]
"""Level of difficulty of a task, None where it has none."""
_LEVEL = "/level "


def stratum_of(task: Task, found: TaskSet, level_of: LevelOf) -> str:
    """Name of the stratum of a task: `<environment>/level <n>`, `<environment>/<pool>` or `<environment>`.

    Args:
        task: One of the version's.
        found: The version. A level that a refresh has noted goes before what the family says.
        level_of: Of the family.
    """
    note = found.notes.get(task.id)
    level = note.level if note is not None and note.level is not None else level_of(task)
    if level is not None:
        return of_level(task.environment, level)
    return f"{task.environment}/{note.pool}" if note is not None else task.environment


def members(found: TaskSet, level_of: LevelOf) -> dict[str, tuple[int, ...]]:
    """Stratum -> indices of its tasks, sorted by name."""
    by_stratum: dict[str, list[int]] = {}
    for index, task in enumerate(found.tasks):
        by_stratum.setdefault(stratum_of(task, found, level_of), []).append(index)
    return {stratum: tuple(by_stratum[stratum]) for stratum in sorted(by_stratum)}


def shares(wanted: Collection[str], origin: Mapping[str, Collection[int]]) -> dict[str, float]:
    """Stratum -> its share of the version that a run began with, above 0: what the run is meant to become good at.

    A stratum that the version had not, of an environment whose strata it had not either (its tasks had no pools yet),
    has the environment's share. A level that it had none of counts as if it had had half a task.

    Args:
        wanted: Strata of the version in use.
        origin: Stratum -> tasks of the version that the run began with.
    """
    total = sum(len(tasks) for tasks in origin.values())
    found: dict[str, float] = {}
    for name in wanted:
        environment, level = parts(name)
        tasks = origin.get(name) or (origin.get(environment.rpartition("/")[0]) if level is None else None)
        found[name] = (len(tasks) if tasks else 0.5) / total
    return found


def of_level(environment: str, level: int) -> str:
    """Name of the stratum of a level."""
    return f"{environment}{_LEVEL}{level}"


def parts(stratum: str) -> tuple[str, int | None]:
    """Environment and level of a stratum by its name; the whole name and None for one that is no level."""
    environment, _, level = stratum.rpartition(_LEVEL)
    return (environment, int(level)) if environment and level.isdecimal() else (stratum, None)
