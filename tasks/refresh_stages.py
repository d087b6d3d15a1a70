"""The stages of a refresh as they are carried out: each reads what the one before has left, and leaves its own.

    plan ─▶ window, window, ... ─▶ distinct ─▶ measured ─▶ version

What a stage has made is kept in the store under the hash of what it was made from (`cache/refresh-<stage>/`), as
JSON: a refresh that is taken up again, on whatever machine, finds it there. The last stage, which alone publishes, is
`refresh_version`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from driftline.environment import Task, TaskFamily, family_named, named_parts, parts_of, shared
from driftline.errors import CorruptObject, EnvironmentFailed, ObjectMissing, PreconditionFailed
from driftline.records import FORMAT, decode, encode
from driftline.refresh import duplicates, proposing
from driftline.refresh.duplicates import Duplicate
from driftline.refresh.proposing import Window
from driftline.refresh.solving import SolveRate
from driftline.refresh.validating import NOTHING_VALIDATED, Validation
from driftline.store import keys, tasksets
from driftline.store.protocol import ObjectStore
from driftline.store.tasksets import TaskSet
from tasks.refresh_health import quarantined, refusal
from tasks.refresh_plan import RefreshPlan, level_of
from tasks.validation import validate

logger = logging.getLogger(__name__)

STAGE_FORMAT = 1
"""Raised when a stage makes something else from the same inputs, so that nothing older is taken from the cache."""
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
    """What a stage makes of its inputs: from the cache, or made and kept there.

    Of several who make it at the same time the first one's stays, and all of them go on with that.
    """
    digest = hashlib.sha256(encode((STAGE_FORMAT, stage, inputs))).hexdigest()
    key = keys.cached(f"refresh-{stage}", digest)
    damaged = ""
    try:
        found = await asyncio.to_thread(store.get, key)
        damaged = found.etag
        return decode(kind, found.body, key=key)
    except ObjectMissing:
        logger.debug("%s is not in the cache", key)
    except CorruptObject as error:
        logger.warning("%s; it is made again", error)
    return await asyncio.to_thread(_kept, store, key, kind, await make(), damaged)


def _kept(store: ObjectStore, key: str, kind: type[ResultT], made: ResultT, damaged: str) -> ResultT:
    """Keep what was made in place of the damaged object of that tag, if there is one; returns what is kept."""
    try:
        store.swap(key, encode(made), damaged) if damaged else store.create(key, encode(made))
    except PreconditionFailed:
        return decode(kind, store.get(key).body, key=key)
    return made


def sources_of(family: TaskFamily) -> str:
    """The digest of a family's source; of a mixture, those of its parts."""
    return " ".join(source_digest(type(part.family)) for part in parts_of(family, family.id))


@cache
def source_digest(family: type) -> str:
    """Of the files that a family is made of, data included: whoever mends one has its tasks validated again."""
    file = Path(inspect.getfile(family))
    packaged = (file.parent / "__init__.py").exists()
    found = sorted(path for path in file.parent.rglob("*") if _is_source(path)) if packaged else [file]
    digest = hashlib.sha256()
    for path in found:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(file.parent)}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


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
        asked_by = "held_out_tasks" if window.seed == HELD_OUT_SEED else proposing.ASKED_BY
        tasks = await asyncio.to_thread(proposing.propose, played, window, asked_by)
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
    ill = ill_environments(family, plan, windows)
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


def ill_environments(
    family: TaskFamily, plan: RefreshPlan, windows: Sequence[Proposed]
) -> Mapping[str, EnvironmentFailed]:
    """Environment id -> why nothing of it is published, of those that all windows show to be unfit."""
    by_name: dict[str, list[Proposed]] = {}
    for window in windows:
        by_name.setdefault(window.environment, []).append(window)
    found = {name: (validation_of(mine), sum(one.proposed for one in mine)) for name, mine in by_name.items()}
    return quarantined(family, plan.options, found)


def to_measure(plan: RefreshPlan, candidates: Candidates) -> list[Task]:
    """The candidates that probe groups play: as many as may be, so that each environment and level is known a little.

    Environments take turns, and of each its levels.
    """
    queues: dict[str, dict[int, list[Task]]] = {}
    for task in candidates.tasks:
        levels = queues.setdefault(task.environment, {})
        levels.setdefault(candidates.levels.get(task.id, -1), []).append(task)
    of_environments = [_in_turn([levels[one] for one in sorted(levels)]) for _, levels in sorted(queues.items())]
    return _in_turn(of_environments)[: plan.options.probe_tasks]


def _in_turn(queues: Sequence[Sequence[Task]]) -> list[Task]:
    """The first of each, then the second of each, and so on."""
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[at] for at in range(longest) for queue in queues if at < len(queue)]


def validation_of(windows: Sequence[Proposed]) -> Validation:
    """What the validation of all windows came to."""
    found = NOTHING_VALIDATED
    for window in windows:
        found = found + window.validation
    return found


async def _validated(family: TaskFamily, tasks: Sequence[Task], window: Window, step_deadline_s: float) -> Proposed:
    found = await validate(family, tasks, deadline_s=step_deadline_s)
    by_id = {task.id: task for task in tasks}  # each once, though the generator may repeat itself
    kept = tuple(by_id[task_id] for task_id in found.accepted)
    known = {task.id: window.level if window.level is not None else level_of(family, task) for task in kept}
    levels = {one: level for one, level in known.items() if level is not None}
    return Proposed(kept, levels, found, len(tasks), window.environment)


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
