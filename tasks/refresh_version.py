"""The last stage of a refresh: the version is curated, published, and becomes the newest of its task set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from driftline import __version__
from driftline.environment import Task, TaskFamily
from driftline.errors import ConfigurationError
from driftline.refresh import curating, reporting, solving
from driftline.refresh.curating import Change, Curated
from driftline.refresh.proposing import Window
from driftline.refresh.reporting import Refreshed
from driftline.refresh.solving import SolveRate
from driftline.store import tasksets
from driftline.store.protocol import ObjectStore
from driftline.store.tasksets import TaskNote, TaskSet
from tasks.refresh_plan import RefreshPlan, level_of
from tasks.refresh_stages import (
    Candidates,
    Measured,
    Proposed,
    Published,
    held_out_tasks,
    ill_environments,
    validation_of,
    windows_of,
)

QUARANTINED = "its environment is quarantined"


async def publish(
    store: ObjectStore, family: TaskFamily, plan: RefreshPlan, windows: Sequence[Proposed], candidates: Candidates,
    measured: Measured,
) -> Published:  # fmt: skip
    """Curate a version and make it the newest, unless the newest was made from it already.

    Raises:
        ConfigurationError: No task is worth training on.
        PreconditionFailed: Another refresh has published a version made from the same parent meanwhile.
    """
    parent = await asyncio.to_thread(tasksets.load_set, store, plan.task_set, plan.parent) if plan.parent else None
    ill = ill_environments(family, plan, windows)
    before = [task for task in _tasks(parent) if task.environment not in ill]
    rates, levels = _with_notes(parent, measured.rates), _levels(family, parent, candidates)
    curated = _curated(
        plan, before, candidates, rates, expected_rates([*before, *candidates.tasks], measured.rates, levels)
    )
    gone = tuple(Change(task.id, QUARANTINED) for task in _tasks(parent) if task.environment in ill)
    curated = replace(curated, went=(*curated.went, *gone))
    held_out = await held_out_tasks(store, family, plan)
    refreshed = _refreshed(plan, before, windows, candidates, measured, curated, rates, levels)
    tasks = [task for task in [*before, *candidates.tasks] if task.id in curated.pools]
    notes, statistics = _notes(curated, levels, rates), reporting.stage_statistics(refreshed)
    version = await asyncio.to_thread(
        tasksets.publish,
        store,
        plan.task_set,
        tasks,
        held_out=held_out if plan.held_out_version is None else None,
        notes=notes,
        weights=curated.weights,
        parent=plan.parent,
        lineage=lineage_of(plan, windows_of(plan)),
        statistics=statistics,
    )
    page = reporting.markdown(replace(refreshed, version=version))
    return Published(plan.task_set, version, tasksets.content_version(held_out), page, statistics)


def expected_rates(
    tasks: Sequence[Task], rates: Mapping[str, SolveRate], levels: Mapping[str, int]
) -> dict[str, SolveRate]:
    """Task id -> solve rate of its level in its own environment, where tasks of that were measured."""
    placed = {task.id: (task.environment, levels[task.id]) for task in tasks if task.id in levels}
    known = solving.by_level(rates, placed)
    return {one: known[place] for one, place in placed.items() if place in known}


def lineage_of(plan: RefreshPlan, windows: Sequence[Window]) -> dict[str, str]:
    """Where the new tasks of a version come from."""
    seeds = [
        f"{window.seed}x{window.count}" + ("" if window.level is None else f"@{window.level}") for window in windows
    ]
    return {
        "generator": plan.environment,
        "seed": str(plan.seed),
        "refresh": plan.id,
        "code_version": __version__,
        "windows": " ".join(seeds),
        **({"run": plan.run, "policy_version": str(plan.policy_version)} if plan.run is not None else {}),
    }


def _curated(
    plan: RefreshPlan,
    before: Sequence[Task],
    candidates: Candidates,
    rates: Mapping[str, SolveRate],
    expected: Mapping[str, SolveRate],
) -> Curated:
    """The tasks of the version: `rates` of tasks, `expected` of those like them, where they are known."""
    curated = curating.curate(
        before,
        candidates.tasks,
        rates,
        size=plan.size,
        rules=plan.options.rules,
        seed=plan.seed,
        expected=expected,
    )
    if not curated.pools and not before and not candidates.tasks:
        raise ConfigurationError(
            f"task set {plan.task_set!r}: none of {plan.options.proposals} proposals is left, "
            f"{len(candidates.dropped)} of them copies of one another or of held-out tasks: raise proposals, or have "
            "the family draw other tasks for other seeds"
        )
    if not curated.pools:
        raise ConfigurationError(
            f"every task of {plan.task_set!r} is always solved, or was never solved: propose harder or easier ones "
            "(proposals, another environment), or widen target_low and target_high"
        )
    return curated


def _refreshed(
    plan: RefreshPlan,
    before: Sequence[Task],
    windows: Sequence[Proposed],
    candidates: Candidates,
    measured: Measured,
    curated: Curated,
    rates: Mapping[str, SolveRate],
    levels: Mapping[str, int],
) -> Refreshed:
    """What the report is made of, but for the version's name."""
    return Refreshed(
        name=plan.task_set,
        version="",
        parent=plan.parent,
        proposed=sum(window.proposed for window in windows),
        validation=validation_of(windows),
        dropped=candidates.dropped,
        rates=rates,
        parent_tasks=[task.id for task in before],
        curated=curated,
        measured_by=measured.by,
        measuring_tokens=measured.tokens,
        levels={one: levels[one] for one in curated.pools if one in levels},
        parent_levels={task.id: levels[task.id] for task in before if task.id in levels},
    )


def _tasks(parent: TaskSet | None) -> tuple[Task, ...]:
    return parent.tasks if parent is not None else ()


def _with_notes(parent: TaskSet | None, rates: Mapping[str, SolveRate]) -> dict[str, SolveRate]:
    """Solve rates, with what an earlier refresh knew of tasks that have not been played since."""
    notes = parent.notes if parent is not None else {}
    earlier = {one: SolveRate(note.attempts, note.solved) for one, note in notes.items() if note.attempts}
    return dict(sorted((earlier | {one: rate for one, rate in rates.items() if rate.attempts}).items()))


def _levels(family: TaskFamily, parent: TaskSet | None, candidates: Candidates) -> dict[str, int]:
    """Task id -> level of the parent's tasks and the candidates, where it is known."""
    known = {task.id: level for task in _tasks(parent) if (level := level_of(family, task, parent)) is not None}
    return known | dict(candidates.levels)


def _notes(curated: Curated, levels: Mapping[str, int], rates: Mapping[str, SolveRate]) -> dict[str, TaskNote]:
    return {
        one: TaskNote(pool, levels.get(one), rate.attempts, rate.solved)
        for one, pool in curated.pools.items()
        for rate in (rates.get(one, SolveRate()),)
    }
