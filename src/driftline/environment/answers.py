"""Another task's answer, which must not solve a task: the rule that checks and refreshes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

REMEDY = "have step compare the answer with the task's own, or, where any answer is right, return None from oracle"
"""Where another task's answer solves a task."""


def others_answers(oracles: Mapping[str, Sequence[str] | None]) -> dict[str, Sequence[str]]:
    """For each task, the last of the oracle's actions for another one: the answer, which ends differently.

    The actions before it are left out. They may be a search, and a search for another task may well pass over what
    solves this one: halving for one number says many others.

    Args:
        oracles: Task id -> the oracle's actions, None without one.

    Returns:
        Task id -> another's last action, alone; tasks for which there is none are missing.
    """
    solved = [(task_id, actions) for task_id, actions in oracles.items() if actions]
    found: dict[str, Sequence[str]] = {}
    for place, (task_id, actions) in enumerate(solved):
        others = (solved[(place + step) % len(solved)][1] for step in range(1, len(solved)))
        other = next((other for other in others if other[-1] != actions[-1]), None)
        if other is not None:
            found[task_id] = other[-1:]
    return found
