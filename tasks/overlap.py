"""Rollout and training of one run, side by side on their pools, and each of the two by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as this_flow_run

from driftline.errors import DriftlineError, EpochLost, ProcessFailed
from driftline.params import RunParameters
from tasks import runs
from tasks.artifacts import ProgressArtifact
from tasks.flow_runs import PrefectFlowRuns
from tasks.logs import run_logger
from tasks.processes import run_module, run_ranks, run_until_over
from tasks.stores import run_store
from tasks.supervision import Plan, run_together
from tasks.surroundings import rollout_environment, training_environment

ROLLOUT = "rollout/local"
TRAINING = "training/local"
EVALUATION = "evaluation/local"
DEPLOYMENTS = (ROLLOUT, TRAINING, EVALUATION)
CELL_MODULE = "driftline.rollout.cell"
TRAINER_MODULE = "driftline.training.entry"
EVALUATION_MODULE = "driftline.rollout.evaluate"
PARENT_POLL_S = 5.0


def plans(run: str, cells: int) -> list[Plan]:
    """The flow runs that work for a run: one trainer, which leads, and the rollout cells."""
    trainer = Plan(TRAINING, {"run": run}, f"trainer-of-{run}", leads=True)
    names = [f"c{index}" for index in range(cells)]
    return [trainer, *(Plan(ROLLOUT, {"run": run, "cell": c}, f"cell-{c}-of-{run}", leads=False) for c in names)]


async def roll_out_and_train(run: str, params: RunParameters) -> None:
    """Start trainer and cells on their pools, and own their fate until the run is over.

    Raises:
        ProcessFailed: One of them failed or was cancelled; the others have been cancelled, and are gone.
    """
    progress = ProgressArtifact(run_store(run), params.training.steps)
    async with PrefectFlowRuns() as flow_runs:
        try:
            await run_together(flow_runs, plans(run, params.rollout.cells), on_poll=progress.refresh)
        except DriftlineError as error:
            await runs.end(run, "failed", str(error))
            raise
        except asyncio.CancelledError:
            await runs.end(run, "cancelled", "its parent flow run was cancelled")
            raise
    await progress.finish()


async def evaluate_on_pool(run: str, versions: list[int]) -> None:
    """Run the evaluation of some policy versions on the rollout pool, and wait for it."""
    shown = "-".join(map(str, versions))
    plan = Plan(EVALUATION, {"run": run, "versions": versions}, f"evaluate-{shown}-of-{run}", leads=True)
    async with PrefectFlowRuns() as flow_runs:
        await run_together(flow_runs, [plan])


async def run_cell(run: str, cell: str) -> None:
    """Be one rollout cell of a run, until the run is over: its process, started again within limits."""
    _, params = await runs.describe(run)

    async def start() -> None:
        await run_module(
            CELL_MODULE, "--run", run, "--cell", cell, env=rollout_environment(params), cpus=params.engine.cpus
        )

    await while_parent_lives(
        run_until_over(
            start,
            run_store(run),
            name=f"rollout cell {cell}",
            limit=params.limits.cell_restarts,
            limit_field="limits.cell_restarts",
        )
    )


async def run_trainer(run: str) -> None:
    """Be the trainer of a run, until the run is over: its ranks, started again within limits.

    A trainer that fails for good says so in the run's head, so that the cells end, whoever watches them.
    """
    _, params = await runs.describe(run)

    async def start() -> None:
        await run_ranks(
            TRAINER_MODULE,
            "--run",
            run,
            ranks=params.training.ranks,
            env=training_environment(params),
            cpus=params.training.cpus,
        )

    try:
        await while_parent_lives(
            run_until_over(
                start,
                run_store(run),
                name="the trainer",
                limit=params.limits.trainer_restarts,
                limit_field="limits.trainer_restarts",
            )
        )
    except DriftlineError as error:
        if not has_lost_its_role(error):
            await runs.end(run, "failed", f"{type(error).__name__}: {error}")
        raise


def has_lost_its_role(error: DriftlineError) -> bool:
    """Whether a trainer ended because another one has taken over, whose run it must not touch."""
    return f" {EpochLost.__name__}: " in str(error)


async def run_evaluation(run: str, versions: list[int]) -> None:
    """Evaluate policy versions of a run on its held-out tasks, in a process of its own."""
    _, params = await runs.describe(run)
    shown = ",".join(map(str, versions))
    await while_parent_lives(
        run_module(
            EVALUATION_MODULE,
            "--run",
            run,
            "--versions",
            shown,
            env=rollout_environment(params),
            cpus=params.engine.cpus,
        )
    )


async def versions_to_evaluate(run: str) -> list[int]:
    """Base and final policy version, less those that have been evaluated already."""
    store = run_store(run)

    def read() -> list[int]:
        head, _ = store.read_head()
        final = head.version.number if head.version is not None else 0
        done = {found.version for found in store.evaluations()}
        return sorted({0, final} - done)

    return await asyncio.to_thread(read)


async def while_parent_lives(work: Coroutine[Any, Any, object]) -> None:
    """Do the work, but end it when the flow run that started this one has ended: killed, it cannot cancel us.

    Raises:
        ProcessFailed: The parent has ended.
    """
    parent = this_flow_run.parent_flow_run_id
    if parent is None:
        await work
        return
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_final(UUID(parent)))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ProcessFailed(f"the flow run that started this one has ended ({watching.result()})")
        working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_final(flow_run: UUID) -> str:
    """Wait until a flow run has ended; returns its state. An API that is away is waited for."""
    logger = run_logger()
    async with get_client() as client:
        while True:
            await asyncio.sleep(PARENT_POLL_S)
            try:
                state = (await client.read_flow_run(flow_run)).state
            except ObjectNotFound:
                return "deleted"
            except Exception as error:  # the policy: only a state that was read ends the work
                logger.warning("cannot see whether the parent flow run goes on: %s", error)
                continue
            if state is not None and state.is_final():
                return str(state.name)
