"""Publishing task sets, as Prefect tasks: a run's first version, and the stages of a refresh.

A refresh's stages keep what they have made in the store (`tasks.refresh_stages.cached`) and find there what the ones
before them have made: between Prefect tasks travel the plan and counts alone, and nothing of them is pickled.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from prefect import task
from prefect.artifacts import acreate_markdown_artifact
from prefect.cache_policies import NO_CACHE

from driftline.environment import Task, TaskFamily, resolve, tasks_for
from driftline.errors import ConfigurationError, EnvironmentFailed
from driftline.params import settings
from driftline.refresh.proposing import Window
from driftline.rollout.background import cancel_and_wait
from driftline.store import tasksets
from driftline.store.probes import ProbeRequest
from driftline.store.protocol import ObjectStore
from driftline.tracking import datasets
from tasks import measuring
from tasks import refresh_stages as stages
from tasks.artifacts import key
from tasks.logs import run_logger
from tasks.refresh_plan import RefreshParameters, RefreshPlan, pinned_plan
from tasks.refresh_stages import HELD_OUT_SEED, Published
from tasks.refreshing import carry_out
from tasks.retries import OUTAGE_DELAYS_S, may_pass
from tasks.stores import shared_store
from tasks.validation import validate as play

VALIDATED_TASKS = 64
"""Training tasks of a run's first version that are played before it is published; of the held-out tasks, all are."""
STEP_DEADLINE_S = 10.0
WINDOWS_AT_ONCE = 2
"""Each plays `tasks.validation.PLAYERS` attempts side by side."""

PATIENT = {
    "retries": len(OUTAGE_DELAYS_S),
    "retry_delay_seconds": OUTAGE_DELAYS_S,
    "retry_condition_fn": may_pass,
    "cache_policy": NO_CACHE,
    "persist_result": False,
}
"""What all stages have in common."""


@dataclass(frozen=True, slots=True)
class TaskSetVersions:
    """A published task set, and the held-out set beside it."""

    name: str
    version: str
    held_out_version: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tasks to publish; `train` and `held_out` share none."""

    environment: str
    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    seed: int


@task(name="publish-task-set", task_run_name="publish {task_set}", timeout_seconds=1800, **PATIENT)
async def publish_task_set(
    environment: str, task_set: str, train_tasks: int, held_out_tasks: int, seed: int
) -> TaskSetVersions:
    """Propose tasks, validate them, publish a run's first version. The same arguments publish the same version.

    Raises:
        ConfigurationError: There is no such environment, or it has too few tasks.
        EnvironmentFailed: The environment raises, hangs, or does not accept its own solution.
        StoreUnavailable: The store does not answer.
    """
    logger = run_logger()
    family = resolve(environment)
    proposal = await asyncio.to_thread(draw, family, train_tasks, held_out_tasks, seed)
    played = await validate(family, proposal)
    logger.info("%d training and %d held-out tasks; %d played", len(proposal.train), len(proposal.held_out), played)
    versions = await asyncio.to_thread(publish, shared_store(), task_set, proposal)
    logger.info("published %s %s, held out: %s", versions.name, versions.version, versions.held_out_version)
    return versions


def publish(store: ObjectStore, name: str, proposal: Proposal) -> TaskSetVersions:
    """Publish the tasks as a version; publishing the same tasks again changes nothing."""
    lineage = {"generator": proposal.environment, "seed": str(proposal.seed)}
    version = tasksets.publish(store, name, proposal.train, held_out=proposal.held_out, lineage=lineage)
    return TaskSetVersions(name, version, tasksets.content_version(proposal.held_out))


async def validate(family: TaskFamily, proposal: Proposal) -> int:
    """Play the held-out tasks and a sample of the others in all ways; returns how many were played.

    Raises:
        EnvironmentFailed: One of them is refused.
    """
    stride = max(1, len(proposal.train) // VALIDATED_TASKS)
    played = [*proposal.held_out, *proposal.train[::stride]]
    found = await play(family, played, deadline_s=STEP_DEADLINE_S)
    if found.refused:
        first = found.refused[0]
        raise EnvironmentFailed(f"environment {family.id}, task {first.task_id} {first.status}: {first.reason}")
    return len(played)


def draw(family: TaskFamily, train_tasks: int, held_out_tasks: int, seed: int) -> Proposal:
    """Held-out tasks by a fixed seed, training tasks by the run's; the latter leave out what is held out."""
    held_out = tasks_for("environment.held_out_tasks", family, HELD_OUT_SEED, held_out_tasks)
    taken = {one.id for one in held_out}
    both = "environment.train_tasks and environment.held_out_tasks, together"
    proposed = tasks_for(both, family, training_seed(family.id, seed), train_tasks + held_out_tasks)
    train = [one for one in proposed if one.id not in taken][:train_tasks]
    if len(train) < train_tasks:
        raise ConfigurationError(
            f"environment.train_tasks: {family.id} has only {len(train)} tasks that are not held out: "
            "lower it, or environment.held_out_tasks"
        )
    return Proposal(family.id, tuple(train), tuple(held_out), seed)


def training_seed(environment: str, seed: int) -> int:
    """Seed of the training tasks: another stream than the held-out tasks and the demonstrations."""
    return int.from_bytes(hashlib.sha256(f"train:{environment}:{seed}".encode()).digest()[:6], "big")


@task(name="plan-refresh", task_run_name="plan the refresh of {task_set}", timeout_seconds=600, **PATIENT)
async def plan_refresh(
    environment: str,
    task_set: str,
    train_tasks: int,
    held_out_tasks: int,
    seed: int,
    options: RefreshParameters,
    run: str | None,
) -> RefreshPlan:
    """Pin what the refresh sets out from: parent, run, solve rates, levels; or find what was pinned before."""
    family = resolve(environment)
    _ = options.rules
    plan = await asyncio.to_thread(
        pinned_plan,
        shared_store(),
        family,
        task_set,
        seed=seed,
        size=train_tasks,
        held_out_tasks=held_out_tasks,
        options=options,
        run=run,
        environment=environment,
    )
    run_logger().info("refresh %s: from version %s, with the policy of run %s", plan.id, plan.parent, plan.run)
    return plan


@task(name="propose-and-validate", task_run_name="window {window.seed}", timeout_seconds=3600, **PATIENT)
async def propose_and_validate(environment: str, window: Window, step_deadline_s: float) -> int:
    """Generate a window of tasks, and play each in all ways; returns how many are accepted."""
    family = resolve(environment)
    found = await stages.propose_and_validate(shared_store(), family, window, step_deadline_s=step_deadline_s)
    return len(found.tasks)


async def validate_windows(environment: str, windows: Sequence[Window], step_deadline_s: float) -> None:
    """Have all windows proposed and validated, a few at a time: deadlines are those of a machine that keeps up."""
    waiting = iter(windows)

    async def work() -> None:
        for window in waiting:
            await propose_and_validate(environment, window, step_deadline_s)

    workers = [asyncio.create_task(work()) for _ in range(WINDOWS_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        await cancel_and_wait(workers)


@task(name="drop-duplicates", task_run_name="compare for {plan.task_set}", timeout_seconds=3600, **PATIENT)
async def drop_duplicates(plan: RefreshPlan) -> int:
    """Judge the environment, and drop proposals that are copies, of held-out tasks above all; returns what is left.

    Raises:
        EnvironmentFailed: The environment is quarantined.
    """
    found = await stages.candidates_of(shared_store(), resolve(plan.environment), plan)
    run_logger().info("%d candidates, %d copies dropped", len(found.tasks), len(found.dropped))
    return len(found.tasks)


@task(name="measure", task_run_name="measure for {plan.task_set}", timeout_seconds=7200, **PATIENT)
async def measure(plan: RefreshPlan) -> int:
    """Learn how often the current policy solves the candidates; returns how many tasks are measured."""
    store, family = shared_store(), resolve(plan.environment)
    candidates = await stages.candidates_of(store, family, plan)
    found = await measuring.measure(store, plan, candidates, _play_on_pool)
    run_logger().info("%d tasks measured (%s), %d tokens", len(found.rates), found.by, found.tokens)
    return len(found.rates)


@task(name="publish-version", task_run_name="publish {plan.task_set}", timeout_seconds=1800, **PATIENT)
async def publish_version(plan: RefreshPlan) -> Published:
    """Curate the version and make it the newest: the only stage that others see anything of."""
    store, family = shared_store(), resolve(plan.environment)
    found = await carry_out(store, family, plan, _play_on_pool)
    run_logger().info("published %s %s", found.name, found.version)
    return found


@task(name="report-refresh", task_run_name="report on {published.name}", timeout_seconds=600, **PATIENT)
async def report(plan: RefreshPlan, published: Published) -> None:
    """Show what came, what went and why in Prefect; register the version in MLflow as a dataset."""
    await acreate_markdown_artifact(
        published.report, key=key("refresh", plan.task_set), description=f"{published.name} {published.version}"
    )
    uri = settings().mlflow_uri
    if uri is not None:
        manifest = await asyncio.to_thread(tasksets.manifest, shared_store(), published.name, published.version)
        await asyncio.to_thread(datasets.log_task_set, uri, manifest, settings().bucket, published.report)


async def _play_on_pool(request: ProbeRequest) -> None:
    """Have a bounded rollout on the rollout pool play a request."""
    from tasks.overlap import measure_on_pool

    await measure_on_pool(request.run, request.id)
