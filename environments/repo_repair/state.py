"""A task as its whole state, and back: which repository it is of, and what undoes its fault."""

from __future__ import annotations

import sys

from driftline.environment import Task
from driftline.errors import EnvironmentFailed
from environments.repo_repair.catalogue import Fault, Repository, repositories
from environments.repo_repair.mutations import GENERATOR
from environments.repo_repair.scoring import PROFILE

PYTHON = "{}.{}".format(*sys.version_info)
"""What a lock would pin: repositories need nothing but the standard library."""


def task_of(environment: str, fault: Fault) -> Task:
    """The task of a fault."""
    repository = repositories()[fault.repository]
    return Task.create(
        environment,
        {
            "repository": repository.name,
            "files": repository.files(fault.mutation.apply(repository.module)),
            "hidden_tests": repository.hidden_digest(),
            "fail_to_pass": list(fault.fail_to_pass),
            "pass_to_pass": list(fault.pass_to_pass),
            "seed": fault.number,
            "generator": GENERATOR,
            "python": PYTHON,
            "sandbox": PROFILE.digest(),
        },
    )


def repository_of(task: Task) -> Repository:
    """The repository of a task.

    Raises:
        EnvironmentFailed: The task was made of other files or limits than there are here, or for another Python.
    """
    payload = task.payload
    repository = repositories().get(payload["repository"])
    if repository is None or repository.hidden_digest() != payload["hidden_tests"]:
        raise EnvironmentFailed(
            f"task {task.id} has other hidden tests than this version: generate the task set anew"
        )
    if payload.get("python") != PYTHON:
        raise EnvironmentFailed(
            f"task {task.id} was made for Python {payload.get('python')}, and this is {PYTHON}: generate the task "
            "set anew, or use that"
        )
    if payload["sandbox"] != PROFILE.digest():
        raise EnvironmentFailed(f"task {task.id} was made for other sandbox limits: generate the task set anew")
    return repository


def inverse_edit(original: str, faulty: str) -> tuple[str, str]:
    """What to replace by what, to have the original again: whole lines, as many as occur once in the faulty text."""
    wanted, found = original.splitlines(keepends=True), faulty.splitlines(keepends=True)
    first = next(index for index, (one, other) in enumerate(zip(wanted, found, strict=False)) if one != other)
    after = 0
    while after < min(len(wanted), len(found)) - first - 1 and wanted[-1 - after] == found[-1 - after]:
        after += 1
    start, end = first, len(found) - after
    while faulty.count("".join(found[start:end])) != 1:
        start = max(0, start - 1)
        end = min(len(found), end + 1)
    tail = len(found) - end
    return "".join(found[start:end]), "".join(wanted[start : len(wanted) - tail])
