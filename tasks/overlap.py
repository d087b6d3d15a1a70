"""Rollout and training of one run, side by side on their pools, and each of the two by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from driftline.errors import DriftlineError, EpochLost, ParentEnded
from driftline.params import RunParameters
from driftline.store.run_store import RunStore
from tasks import runs
from tasks.artifacts import OffsetsArtifact, ProgressArtifact
from tasks.flow_runs import PrefectFlowRuns
from tasks.lifeline import while_parent_lives
from tasks.logs import run_logger
from tasks.processes import run_again, run_module, run_ranks, run_until_over
from tasks.stores import run_store, shared_store
from tasks.supervision import Plan, end_all, run_together
from tasks.surroundings import rollout_environment, training_environment

ROLLOUT = "rollout/local"
TRAINING = "training/local"
EVALUATION = "evaluation/local"
DEPLOYMENTS = (ROLLOUT, TRAINING, EVALUATION)
CELL_MODULE = "driftline.rollout.cell"
TRAINER_MODULE = "driftline.training.entry"
MEASURING = "measuring/local"
MEASURING_MODULE = "driftline.rollout.measure"
EVALUATION_MODULE = "driftline.rollout.evaluate"
PROGRESS_PATIENCE_S = 2.0
"""How long the display of a run's progress waits for the store: its children are not watched meanwhile."""


def plans(run: str, params: RunParameters) -> list[Plan]:
    """The flow runs that work for a run: one trainer, which leads, and the rollout cells.

    Their names are those that the flows give themselves: what an earlier parent has left is found by them.
    """
    again = params.limits.flow_run_restarts
    trainer = Plan(TRAINING, {"run": run}, f"trainer-of-{run}", leads=True, restarts=again)
    names = [f"c{index}" for index in range(params.rollout.cells)]
    cells = [Plan(ROLLOUT, {"run": run, "cell": c}, f"cell-{c}-of-{run}", leads=False, restarts=again) for c in names]
    return [trainer, *cells]


async def roll_out_and_train(run: str, params: RunParameters) -> None:
    """Start trainer and cells on their pools, and own their fate until the run is over.

    Raises:
        ProcessFailed: One of them failed or was cancelled; the others have been cancelled, and are gone.
    """
    shown = RunStore(shared_store(patience_s=PROGRESS_PATIENCE_S), run)
    kept = (ProgressArtifact(shown, params.training.steps), OffsetsArtifact(shown))

    async def show() -> None:
        for artifact in kept:
            await artifact.refresh()

    wanted = plans(run, params)
    async with PrefectFlowRuns() as flow_runs:
        try:
            await end_left_over(flow_runs, wanted)
            await run_together(flow_runs, wanted, on_poll=show)
        except DriftlineError as error:
            await runs.end(run, "failed", str(error))
            raise
        except asyncio.CancelledError:
            await runs.end(run, "cancelled", "its parent flow run was cancelled")
            raise
    for artifact in kept:
        await artifact.finish()


async def evaluate_on_pool(run: str, params: RunParameters, versions: list[int]) -> None:
    """Run the evaluation of some policy versions on the rollout pool, and wait for it."""
    arguments = {"run": run, "versions": versions}
    again = params.limits.flow_run_restarts
    wanted = [Plan(EVALUATION, arguments, f"evaluation-of-{run}", leads=True, restarts=again)]
    async with PrefectFlowRuns() as flow_runs:
        await end_left_over(flow_runs, wanted)
        await run_together(flow_runs, wanted)


async def measure_on_pool(run: str, request: str) -> None:
    """Have a bounded rollout on the rollout pool play a request for probe groups, and wait for it."""
    _, params = await runs.describe(run)
    arguments = {"run": run, "request": request}
    again = params.limits.flow_run_restarts
    wanted = [Plan(MEASURING, arguments, f"measuring-{request}", leads=True, restarts=again)]
    async with PrefectFlowRuns() as flow_runs:
        await end_left_over(flow_runs, wanted)
        await run_together(flow_runs, wanted)


async def end_left_over(flow_runs: PrefectFlowRuns, wanted: Sequence[Plan]) -> None:
    """End what a parent that was killed has left behind, so that two of a name never work side by side."""
    left = await flow_runs.left_over(wanted)
    for child in left:
        run_logger().warning("%s is left over from an earlier parent: ending it first", child.plan.name)
    await end_all(flow_runs, left)


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
    except ParentEnded:
        raise  # whoever takes the run up again finds it running
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

    async def start() -> None:
        await run_module(
            EVALUATION_MODULE,
            "--run",
            run,
            "--versions",
            shown,
            env=rollout_environment(params),
            cpus=params.engine.cpus,
        )

    await while_parent_lives(
        run_again(start, name="the evaluation", limit=params.limits.cell_restarts, limit_field="limits.cell_restarts")
    )


async def run_measuring(run: str, request: str) -> None:
    """Play a request for probe groups with a run's newest policy, in a process of its own."""
    _, params = await runs.describe(run)

    async def start() -> None:
        await run_module(
            MEASURING_MODULE, "--run", run, "--request", request,
            env=rollout_environment(params), cpus=params.engine.cpus,
        )  # fmt: skip

    await while_parent_lives(
        run_again(start, name="the measuring", limit=params.limits.cell_restarts, limit_field="limits.cell_restarts")
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
