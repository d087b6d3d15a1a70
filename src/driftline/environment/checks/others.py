"""The check of shortcuts: what is right for one task is wrong for another. A refresh has the same rule."""

from __future__ import annotations

from driftline.environment.answers import others_answers
from driftline.environment.checks.findings import Case, NotApplicable, ensure, short
from driftline.environment.checks.playing import MAX_TURNS, in_a_loop, play
from driftline.environment.checks.tasks import MANY, some


def do_not_solve(case: Case) -> None:
    """Another task's answer does not succeed."""
    in_a_loop(_do_not_solve(case))


async def _do_not_solve(case: Case) -> None:
    tasks = {task.id: task for task in some(case, MANY)}
    found = others_answers({task_id: case.family.oracle(task) for task_id, task in tasks.items()})
    if not found:
        raise NotApplicable("there is no oracle, or its last actions are all alike")
    for task_id, answer in found.items():
        last = (await play(case, tasks[task_id], answer, max_turns=MAX_TURNS))[-1]
        ensure(
            last["success"] is not True, f"task {task_id} is solved by another task's answer, {short(answer[0], 60)}"
        )
