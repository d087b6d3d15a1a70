"""Publishing a task set: propose tasks, validate them by playing, publish what is left."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from prefect import task

from driftline.environment import Task, TaskFamily, resolve
from driftline.errors import ConfigurationError, EnvironmentFailed
from driftline.store import tasksets
from driftline.store.protocol import ObjectStore
from tasks.episodes import play
from tasks.logs import run_logger
from tasks.retries import OUTAGE_DELAYS_S, may_pass
from tasks.stores import shared_store

HELD_OUT_SEED = 20_000_003
"""Held-out tasks do not depend on a run's seed: success is comparable over seeds, and over nights."""
VALIDATED_TASKS = 64
"""Training tasks that are played by the oracle before a set is published; of the held-out tasks, all are."""
STEP_DEADLINE_S = 10.0
MAX_ORACLE_TURNS = 1000


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


@task(
    name="publish-task-set",
    task_run_name="publish {task_set}",
    timeout_seconds=1800,
    retries=len(OUTAGE_DELAYS_S),
    retry_delay_seconds=OUTAGE_DELAYS_S,
    retry_condition_fn=may_pass,
)
async def publish_task_set(
    environment: str, task_set: str, train_tasks: int, held_out_tasks: int, seed: int
) -> TaskSetVersions:
    """Propose tasks, validate them, publish a version. The same arguments publish the same version.

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
    """Play the held-out tasks and a sample of the others with the oracle; returns how many were played."""
    stride = max(1, len(proposal.train) // VALIDATED_TASKS)
    played = [*proposal.held_out, *proposal.train[::stride]]
    for one in played:
        await solve(family, one)
    return len(played)


def draw(family: TaskFamily, train_tasks: int, held_out_tasks: int, seed: int) -> Proposal:
    """Held-out tasks by a fixed seed, training tasks by the run's; the latter leave out what is held out."""
    held_out = family.generate(HELD_OUT_SEED, held_out_tasks)
    taken = {one.id for one in held_out}
    proposed = family.generate(training_seed(family.id, seed), train_tasks + held_out_tasks)
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


async def solve(family: TaskFamily, one: Task) -> None:
    """Play a task with its oracle; one without an oracle is only reset."""
    actions = family.oracle(one)
    success = await play(family, one, actions or (), max_turns=MAX_ORACLE_TURNS, deadline_s=STEP_DEADLINE_S)
    if actions is not None and not success:
        raise EnvironmentFailed(
            f"{family.id} does not accept its oracle's solution of task {one.id}: mend one of them"
        )
