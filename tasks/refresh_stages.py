"""The stages of a refresh as they are carried out: each reads what the one before has left, and leaves its own.

    plan ─▶ window, window, ... ─▶ distinct ─▶ measured ─▶ version

What a stage has made is kept in the store under the hash of what it was made from (`cache/refresh-<stage>/`), as
JSON: a refresh that is taken up again, on whatever machine, finds it there. Only the last stage publishes.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from driftline import __version__
from driftline.environment import Task, TaskFamily, family_named, named_parts, parts_of, shared
from driftline.errors import ConfigurationError, CorruptObject, EnvironmentFailed, ObjectMissing
from driftline.records import FORMAT, decode, encode
from driftline.refresh import curating, duplicates, proposing, reporting, solving
from driftline.refresh.curating import Change, Curated
from driftline.refresh.duplicates import Duplicate
from driftline.refresh.proposing import Window
from driftline.refresh.reporting import Refreshed
from driftline.refresh.solving import SolveRate
from driftline.refresh.validating import NOTHING_VALIDATED, Validation
from driftline.store import keys, tasksets
from driftline.store.protocol import ObjectStore
from driftline.store.tasksets import TaskNote, TaskSet
from tasks.refresh_health import quarantined, refusal
from tasks.refresh_plan import RefreshPlan, level_of
from tasks.validation import validate

logger = logging.getLogger(__name__)

STAGE_FORMAT = 1
"""Raised when a stage makes something else from the same inputs, so that nothing older is taken from the cache."""
QUARANTINED = "its environment is quarantined"
HELD_OUT_SEED = 20_000_003
"""Held-out tasks do not depend on a run's seed: success is comparable over seeds, and over nights."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Proposed:
    """The tasks of one window, and what their validation came to."""

    tasks: tuple[Task, ...]
    """Accepted ones."""
    levels: Mapping[str, int]
    """Task id -> level, where it is known."""
    validation: Validation
    proposed: int
    environment: str = ""
    """Name of the family, as in its window."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is left of all windows after the comparison."""

    tasks: tuple[Task, ...]
    levels: Mapping[str, int]
    dropped: tuple[Duplicate, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Measured:
    """Solve rates of candidates and of the parent's tasks."""

    rates: Mapping[str, SolveRate]
    tokens: int
    """Sampled for it alone."""
    by: str
    """In words."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Published:
    """A version, and the report of how it came about."""

    name: str
    version: str
    held_out_version: str
    report: str
    statistics: Mapping[str, float] = field(default_factory=dict[str, float])


async def cached(
    store: ObjectStore, stage: str, inputs: object, kind: type[ResultT], make: Callable[[], Awaitable[ResultT]]
) -> ResultT:
    """What a stage makes of its inputs: from the cache, or made and kept there."""
    digest = hashlib.sha256(encode((STAGE_FORMAT, stage, inputs))).hexdigest()
    key = keys.cached(f"refresh-{stage}", digest)
    try:
        found = await asyncio.to_thread(store.get, key)
        return decode(kind, found.body, key=key)
    except ObjectMissing:
        logger.debug("%s is not in the cache", key)
    except CorruptObject as error:
        logger.warning("%s; it is made again", error)
    made = await make()
    await asyncio.to_thread(store.put, key, encode(made))
    return made


def sources_of(family: TaskFamily) -> str:
    """The digest of a family's source; of a mixture, those of its parts."""
    return " ".join(source_digest(type(part.family)) for part in parts_of(family, family.id))


@cache
def source_digest(family: type) -> str:
    """Of the modules that a family is made of: whoever mends one has its tasks validated again."""
    file = Path(inspect.getfile(family))
    packaged = (file.parent / "__init__.py").exists()
    files = sorted(file.parent.rglob("*.py")) if packaged else [file]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def windows_of(plan: RefreshPlan) -> list[Window]:
    """The windows of a plan; each is of one environment, and of a mixture each has its share."""
    options, parts = plan.options, named_parts(plan.environment)
    counts = shared(options.proposals, [share for _, share in parts])
    return [
        window
        for (name, _), count in zip(parts, counts, strict=True)
        for window in proposing.windows(name, plan.seed, count, size=options.window, levels=plan.levels)
    ]


async def propose_and_validate(
    store: ObjectStore, family: TaskFamily, window: Window, *, step_deadline_s: float
) -> Proposed:
    """Generate a window's tasks and play each in all ways; the family is the window's, or a mixture that has it."""
    played = family_named(family, window.environment)

    async def make() -> Proposed:
        tasks = await asyncio.to_thread(proposing.propose, played, window)
        return await _validated(played, tasks, window, step_deadline_s)

    inputs = (asdict(window), step_deadline_s, sources_of(played))
    return await cached(store, "window", inputs, Proposed, make)


async def proposed_of(store: ObjectStore, family: TaskFamily, plan: RefreshPlan) -> list[Proposed]:
    """What all windows of a plan came to."""
    deadline_s = plan.options.step_deadline_s
    return [
        await propose_and_validate(store, family, window, step_deadline_s=deadline_s) for window in windows_of(plan)
    ]


async def candidates_of(store: ObjectStore, family: TaskFamily, plan: RefreshPlan) -> Candidates:
    """What is left of all windows of a plan after the comparison; raises what `drop_duplicates` raises."""
    return await drop_duplicates(store, family, plan, await proposed_of(store, family, plan))


async def held_out_tasks(store: ObjectStore, family: TaskFamily, plan: RefreshPlan) -> tuple[Task, ...]:
    """The held-out tasks: those that are published, or the first ones, which the oracle has to solve."""
    name = tasksets.held_out_name(plan.task_set)
    if plan.held_out_version is not None:
        return tuple(await asyncio.to_thread(tasksets.load, store, name, plan.held_out_version))
    window = Window(plan.environment, HELD_OUT_SEED, plan.held_out_tasks)
    found = await propose_and_validate(store, family, window, step_deadline_s=plan.options.step_deadline_s)
    if found.validation.refused:
        raise EnvironmentFailed(refusal(family, found.validation))
    return found.tasks


async def drop_duplicates(
    store: ObjectStore, family: TaskFamily, plan: RefreshPlan, windows: Sequence[Proposed]
) -> Candidates:
    """Judge each environment by its windows, and compare the tasks with what is held out, and what there was.

    Raises:
        EnvironmentFailed: Too many attempts failed, or too many tasks are flaky, or none is left. Of a mixture, in
            every part: one that fails alone has its tasks left out.
    """
    ill = _quarantined(family, plan, windows)
    for failure in ill.values():
        logger.error("%s", failure)
    windows = [window for window in windows if family_named(family, window.environment).id not in ill]
    if not windows:
        raise next(iter(ill.values()))
    held_out = await held_out_tasks(store, family, plan)
    tasks = [task for window in windows for task in window.tasks]

    async def make() -> Candidates:
        earlier = await asyncio.to_thread(_earlier, store, plan)
        found = await asyncio.to_thread(
            duplicates.distinct, tasks, held_out=held_out, earlier=earlier, limit=plan.options.near_duplicate
        )
        levels = {one: level for window in windows for one, level in window.levels.items()}
        kept = {task.id for task in found.kept}
        return Candidates(found.kept, {one: level for one, level in levels.items() if one in kept}, found.dropped)

    inputs = (
        plan.task_set,
        plan.parent,
        TaskSet(tuple(held_out)).version,
        [task.id for task in tasks],
        plan.options.near_duplicate,
        plan.options.earlier_versions,
    )
    return await cached(store, "distinct", inputs, Candidates, make)


def _quarantined(
    family: TaskFamily, plan: RefreshPlan, windows: Sequence[Proposed]
) -> Mapping[str, EnvironmentFailed]:
    by_name: dict[str, list[Proposed]] = {}
    for window in windows:
        by_name.setdefault(window.environment, []).append(window)
    found = {name: (validation_of(mine), sum(one.proposed for one in mine)) for name, mine in by_name.items()}
    return quarantined(family, plan.options, found)


def to_measure(plan: RefreshPlan, candidates: Candidates) -> list[Task]:
    """The candidates that probe groups play: as many as may be, levels in turn, so that each is known a little."""
    by_level: dict[int, list[Task]] = {}
    for task in candidates.tasks:
        by_level.setdefault(candidates.levels.get(task.id, -1), []).append(task)
    queues = [by_level[level] for level in sorted(by_level)]
    longest = max((len(queue) for queue in queues), default=0)
    in_turn = [queue[at] for at in range(longest) for queue in queues if at < len(queue)]
    return in_turn[: plan.options.probe_tasks]


async def publish(
    store: ObjectStore, family: TaskFamily, plan: RefreshPlan, windows: Sequence[Proposed], candidates: Candidates,
    measured: Measured,
) -> Published:  # fmt: skip
    """Curate a version and make it the newest, unless the newest was made from it already.

    Raises:
        ConfigurationError: No task is worth training on.
    """
    parent = await asyncio.to_thread(tasksets.load_set, store, plan.task_set, plan.parent) if plan.parent else None
    ill = _quarantined(family, plan, windows)
    all_before = parent.tasks if parent is not None else ()
    before = [task for task in all_before if task.environment not in ill]
    rates = _with_notes(parent, measured.rates)
    levels = _levels(family, parent, candidates)
    of_level = solving.by_level(measured.rates, levels)
    curated = curating.curate(
        before,
        candidates.tasks,
        rates,
        size=plan.size,
        rules=plan.options.rules,
        seed=plan.seed,
        expected={one: of_level[level] for one, level in levels.items() if level in of_level},
    )
    gone = tuple(Change(task.id, QUARANTINED) for task in all_before if task.environment in ill)
    curated = replace(curated, went=(*curated.went, *gone))
    if not curated.pools:
        raise ConfigurationError(
            f"every task of {plan.task_set!r} is always solved, or was never solved: propose harder or easier ones "
            "(proposals, another environment), or widen target_low and target_high"
        )
    held_out = await held_out_tasks(store, family, plan)
    refreshed = Refreshed(
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
    statistics = reporting.stage_statistics(refreshed)
    tasks = [task for task in [*before, *candidates.tasks] if task.id in curated.pools]
    notes = _notes(curated, levels, rates)
    version = TaskSet(tuple(tasks), notes, curated.weights).version
    await asyncio.to_thread(
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
        make_newest=not await asyncio.to_thread(_has_children, store, plan.task_set, version),
    )
    page = reporting.markdown(replace(refreshed, version=version))
    return Published(plan.task_set, version, TaskSet(tuple(held_out)).version, page, statistics)


def validation_of(windows: Sequence[Proposed]) -> Validation:
    """What the validation of all windows came to."""
    found = NOTHING_VALIDATED
    for window in windows:
        found = found + window.validation
    return found


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


async def _validated(family: TaskFamily, tasks: Sequence[Task], window: Window, step_deadline_s: float) -> Proposed:
    found = await validate(family, tasks, deadline_s=step_deadline_s)
    accepted = {*found.accepted}
    kept = tuple(task for task in tasks if task.id in accepted)
    known = {task.id: window.level if window.level is not None else level_of(family, task) for task in kept}
    levels = {one: level for one, level in known.items() if level is not None}
    return Proposed(kept, levels, found, len(tasks), window.environment)


def _has_children(store: ObjectStore, name: str, version: str) -> bool:
    """Whether the newest version was made from this one: a refresh that is repeated later must not undo it."""
    try:
        return version in tasksets.ancestors(store, name, tasksets.head(store, name).version)
    except ObjectMissing:
        return False


def _earlier(store: ObjectStore, plan: RefreshPlan) -> list[Task]:
    """The tasks of the parent and of the versions before it, each once, the newest first."""
    if plan.parent is None:
        return []
    versions = [plan.parent]
    for version in tasksets.ancestors(store, plan.task_set, plan.parent):
        if len(versions) > plan.options.earlier_versions:
            break
        versions.append(version)
    found: dict[str, Task] = {}
    for version in versions:
        try:
            found |= {task.id: task for task in tasksets.load(store, plan.task_set, version) if task.id not in found}
        except ObjectMissing:
            continue
    return [*found.values()]


def _with_notes(parent: TaskSet | None, rates: Mapping[str, SolveRate]) -> dict[str, SolveRate]:
    """Solve rates, with what an earlier refresh knew of tasks that have not been played since."""
    notes = parent.notes if parent is not None else {}
    earlier = {one: SolveRate(note.attempts, note.solved) for one, note in notes.items() if note.attempts}
    return dict(sorted((earlier | {one: rate for one, rate in rates.items() if rate.attempts}).items()))


def _levels(family: TaskFamily, parent: TaskSet | None, candidates: Candidates) -> dict[str, int]:
    before = parent.tasks if parent is not None else ()
    known = {task.id: level for task in before if (level := level_of(family, task, parent)) is not None}
    return known | dict(candidates.levels)


def _notes(curated: Curated, levels: Mapping[str, int], rates: Mapping[str, SolveRate]) -> dict[str, TaskNote]:
    return {
        one: TaskNote(pool, levels.get(one), rate.attempts, rate.solved)
        for one, pool in curated.pools.items()
        for rate in (rates.get(one, SolveRate()),)
    }
