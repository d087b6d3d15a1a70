"""What a refresh sets out from, pinned once: whoever takes it up again, after whatever end, works on the same."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from driftline.environment import Task, TaskFamily
from driftline.environment import level_of as level_in_family
from driftline.errors import ConfigurationError, CorruptObject, ObjectMissing, PreconditionFailed
from driftline.records import FORMAT, decode, encode
from driftline.refresh import curating, proposing, solving
from driftline.refresh.curating import CurationRules
from driftline.refresh.solving import SolveRate
from driftline.store import keys, tasksets
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore, list_runs
from driftline.store.tasksets import TaskSet

logger = logging.getLogger(__name__)

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

RUNS_LOOKED_AT = 32
"""Newest runs among which one with the task set's policy is looked for."""


class RefreshParameters(BaseModel):
    """How a refresh makes a version. Becomes a form in the Prefect UI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proposals: int = Field(1024, ge=1, description="New tasks to propose.")
    window: int = Field(256, ge=1, description="Proposals that are generated and validated together.")
    near_duplicate: float = Field(0.8, gt=0, le=1, description="Least Jaccard similarity of near duplicates.")
    earlier_versions: int = Field(
        8, ge=0, description="Versions before the parent whose tasks are not proposed again."
    )
    recent_steps: int = Field(
        20, ge=1, description="Last steps of the run whose groups say how often tasks are solved."
    )
    probe_tasks: int = Field(256, ge=0, description="Most tasks that probe groups measure; 0 measures none.")
    probe_members: int = Field(8, ge=1, description="Episodes of a probe group.")
    measure_deadline_s: float = Field(1800.0, gt=0, description="What is not measured by then counts as unmeasured.")
    target_low: float = Field(0.2, ge=0, lt=1, description="Lowest useful solve rate.")
    target_high: float = Field(0.8, gt=0, le=1, description="Highest useful solve rate.")
    fewest_attempts: int = Field(4, ge=1, description="Episodes of a task below which it counts as unmeasured.")
    never_solved_share: float = Field(0.1, ge=0, le=1, description="Share of a version kept of what is never solved.")
    weights: dict[str, Weight] = Field(
        dict(curating.WEIGHTS), description="Share of the groups drawn from each pool, relative to one another."
    )
    most_failures: float = Field(
        0.1, ge=0, le=1, description="Share of attempts that may fail for reasons of infrastructure; beyond it the "
        "environment is quarantined, and nothing is published.",
    )  # fmt: skip
    most_timeouts: float = Field(
        0.05, ge=0, le=1, description="Share of attempts that may run out of time, likewise."
    )
    most_flaky: float = Field(0.1, ge=0, le=1, description="Share of proposals that may be flaky, likewise.")
    step_deadline_s: float = Field(10.0, gt=0, description="Deadline of a reset or a step, in seconds.")

    @property
    def rules(self) -> CurationRules:
        """As the curation takes them."""
        if self.target_low >= self.target_high:
            raise ConfigurationError("target_low: must be below target_high")
        unknown = self.weights.keys() - {*curating.POOLS}
        if unknown:
            raise ConfigurationError(f"weights: there is no pool {sorted(unknown)[0]!r}: {', '.join(curating.POOLS)}")
        return CurationRules(
            low=self.target_low,
            high=self.target_high,
            fewest_attempts=self.fewest_attempts,
            never_solved_share=self.never_solved_share,
            weights=self.weights,
        )


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """What a refresh makes a version from."""

    id: str
    environment: str
    """Name of the family, as `resolve` knows it."""
    task_set: str
    seed: int
    size: int
    held_out_tasks: int
    parameters: Mapping[str, Any]
    parent: str | None
    held_out_version: str | None
    run: str | None = None
    """Whose policy measures."""
    policy_version: int | None = None
    """Its newest when the refresh began."""
    rates: Mapping[str, SolveRate] = field(default_factory=dict[str, SolveRate])
    """Task id -> solve rate in the run's last steps."""
    levels: Mapping[int, int] | None = None
    """Level -> proposals, where the family has levels."""
    format: int = FORMAT

    @property
    def options(self) -> RefreshParameters:
        """The parameters, as they were given."""
        return RefreshParameters.model_validate(dict(self.parameters))


def pinned_plan(
    store: ObjectStore,
    family: TaskFamily,
    task_set: str,
    *,
    seed: int,
    size: int,
    held_out_tasks: int,
    options: RefreshParameters,
    run: str | None = None,
    environment: str | None = None,
) -> RefreshPlan:
    """The plan of the refresh with these arguments: the one it had before, or a new one. Blocks.

    Args:
        store: Where task sets and runs are.
        family: Of the tasks.
        task_set: The task set's name.
        seed: Of the refresh: another one makes another version, from what is the newest then.
        size: Most training tasks.
        held_out_tasks: Held-out tasks, where none are published yet.
        options: All else.
        run: Whose policy measures; None is the newest run over the task set.
        environment: Name of the family, as `resolve` knows it; None is its id.

    Raises:
        ConfigurationError: No tasks are asked for, or the run plays another environment, or has no policy yet.
        ObjectMissing: There is no such run.
    """
    if min(size, held_out_tasks) < 1:
        raise ConfigurationError("train_tasks, held_out_tasks: ask for at least one task of each")
    name = environment or family.id
    asked = (name, task_set, seed, size, held_out_tasks, options.model_dump(mode="json"), run)
    identity = hashlib.sha256(encode(asked)).hexdigest()[:16]
    key = keys.refresh_plan(task_set, identity)
    try:
        return decode(RefreshPlan, store.get(key).body, key=key)
    except ObjectMissing:
        plan = _new_plan(store, family, name, task_set, identity, seed, size, held_out_tasks, options, run)
    try:
        store.create(key, encode(plan))
    except PreconditionFailed:
        return decode(RefreshPlan, store.get(key).body, key=key)
    return plan


def level_of(family: TaskFamily, task: Task, found: TaskSet | None = None) -> int | None:
    """The level of a task: as a refresh has noted it, or as the family says; None where nobody does."""
    note = found.notes.get(task.id) if found is not None else None
    if note is not None and note.level is not None:
        return note.level
    return level_in_family(family, task)


def newest_set(store: ObjectStore, name: str) -> TaskSet | None:
    """The newest version of a task set, None before there is one."""
    try:
        return tasksets.load_set(store, name, tasksets.head(store, name).version)
    except ObjectMissing:
        return None


def run_over(store: ObjectStore, task_set: str, environment: str) -> RunStore | None:
    """The run whose policy measures: of the newest ones over the task set, one under way, else the newest."""
    found: list[tuple[bool, int, RunStore]] = []
    for place, name in enumerate(list_runs(store)[-RUNS_LOOKED_AT:]):
        run_store = RunStore(store, name)
        try:
            chosen = run_store.describe().parameters.get("environment", {})
            head, _ = run_store.read_head()
        except ObjectMissing:
            continue
        except CorruptObject as error:
            logger.warning("run %s does not measure: %s", name, error)
            continue
        if (chosen.get("task_set"), chosen.get("id")) == (task_set, environment) and head.version is not None:
            found.append((head.state == "running", place, run_store))
    return max(found, key=lambda one: one[:2])[2] if found else None


def recent_rates(run_store: RunStore, steps: int) -> dict[str, SolveRate]:
    """Task id -> solve rate over the groups of a run's last steps."""
    uses = [use for record in run_store.last_steps(steps) for use in record.groups]
    return solving.merged(
        *({use.task_id: SolveRate(use.valid_members, round(use.success_mean * use.valid_members))} for use in uses)
    )


def _new_plan(
    store: ObjectStore,
    family: TaskFamily,
    environment: str,
    task_set: str,
    identity: str,
    seed: int,
    size: int,
    held_out_tasks: int,
    options: RefreshParameters,
    run: str | None,
) -> RefreshPlan:
    parent, held_out = newest_set(store, task_set), newest_set(store, tasksets.held_out_name(task_set))
    policy = _run_named(store, run, environment) if run is not None else run_over(store, task_set, environment)
    rates: dict[str, SolveRate] = {}
    version = None
    if policy is not None:
        head, _ = policy.read_head()
        version = head.version.number if head.version is not None else None
        rates = recent_rates(policy, options.recent_steps)
    return RefreshPlan(
        id=identity,
        environment=environment,
        task_set=task_set,
        seed=seed,
        size=size,
        held_out_tasks=held_out_tasks,
        parameters=options.model_dump(mode="json"),
        parent=parent.version if parent is not None else None,
        held_out_version=held_out.version if held_out is not None else None,
        run=policy.run if policy is not None else None,
        policy_version=version,
        rates=rates,
        levels=_levels(family, parent, rates, options),
    )


def _run_named(store: ObjectStore, run: str, environment: str) -> RunStore:
    found = RunStore(store, run)
    plays = found.describe().parameters.get("environment", {}).get("id")
    if plays != environment:
        raise ConfigurationError(f"run: {run!r} plays {plays!r}, not {environment!r}: name another run, or none")
    try:
        begun = found.read_head()[0].version is not None
    except ObjectMissing:
        begun = False
    if not begun:
        raise ConfigurationError(f"run: {run!r} has no policy yet: name another run, or none")
    return found


def _levels(
    family: TaskFamily, parent: TaskSet | None, rates: Mapping[str, SolveRate], options: RefreshParameters
) -> dict[int, int] | None:
    """How many proposals to make at each level; None leaves the mixture to the generator."""
    if parent is None or not rates:
        return None
    known = {task.id: level for task in parent.tasks if (level := level_of(family, task, parent)) is not None}
    if not proposing.graded(family):
        return None
    levels = family.levels
    return proposing.spread(options.proposals, levels, solving.by_level(rates, known))
