"""Asking a family for tasks: what it cannot give is told with the parameter that asked."""

from __future__ import annotations

from driftline.environment.abilities import GradedFamily
from driftline.environment.contract import Task, TaskFamily
from driftline.errors import ConfigurationError


def tasks_for(parameter: str, family: TaskFamily, seed: int, count: int) -> list[Task]:
    """`count` tasks of a family.

    Args:
        parameter: Which settings ask for so many, such as `environment.train_tasks`.
        family: Asked for them.
        seed: Of the tasks.
        count: How many.

    Raises:
        ConfigurationError: The family refuses so many, by that error or by a bare ValueError.
    """
    try:
        return family.generate(seed, count)
    except ValueError as error:
        raise ConfigurationError(
            f"{parameter}: {family.id} does not give {count} distinct tasks ({_told(error)}): lower the parameter, "
            "or have generate know more tasks"
        ) from error


def tasks_of_level(parameter: str, name: str, family: GradedFamily, level: int, seed: int, count: int) -> list[Task]:
    """`count` tasks of a level of the family of that name; the other arguments are those of `tasks_for`.

    Raises:
        ConfigurationError: The family refuses so many, or the level, by that error or by a bare ValueError.
    """
    try:
        return family.generate_level(level, seed, count)
    except ValueError as error:
        tasks = "task" if count == 1 else "tasks"
        raise ConfigurationError(
            f"{parameter}: {name} does not give {count} distinct {tasks} of level {level} ({_told(error)}): lower "
            "the parameter, or have generate_level know more tasks"
        ) from error


def _told(error: ValueError) -> str:
    return str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"


def at_most(parameter: str, family: TaskFamily, seed: int, count: int) -> list[Task]:
    """`count` tasks of a family, or fewer where it has not so many: the half, a quarter, and so on down to one.

    Raises:
        ConfigurationError: It gives not even one.
    """
    while True:
        try:
            tasks = tasks_for(parameter, family, seed, count)
        except ConfigurationError:
            if count == 1:
                raise
            count //= 2
            continue
        if not tasks:
            raise ConfigurationError(f"{parameter}: {family.id} gives no task of {count}: return distinct tasks")
        return tasks
