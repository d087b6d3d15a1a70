"""The same work synchronous and overlapped, in pairs within one flow run.

Both runs of a pair have the same base policy, task set and seed; the engine is pinned to one processor and the
trainer to another. Pairs take turns in which mode goes first, so that a drift of the machine does not favour one.

    prefect deployment run overlap-benchmark/local --param json_path=overlap.json --watch
    python -m flows.overlap_benchmark --json overlap.json        (against the server that PREFECT_API_URL names)
"""

import argparse
import asyncio
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from driftline.params import RunParameters
from flows.environment_refresh import environment_refresh
from tasks import benchmark, overlap, runs
from tasks.model import base_policy
from tasks.naming import name_of
from tasks.preflight import preflight
from tasks.refresh import TaskSetVersions
from tasks.stores import run_store

DEFAULTS = RunParameters()  # pyright: ignore[reportCallIssue]


@flow(name="overlap-benchmark", flow_run_name="overlap-benchmark-{pairs}-pairs")
async def overlap_benchmark(
    params: RunParameters = DEFAULTS,
    pairs: Annotated[int, Field(ge=1)] = 3,
    steps: Annotated[int, Field(ge=2)] = 10,
    skip_steps: Annotated[int, Field(ge=1)] = 2,
    json_path: str | None = None,
) -> dict[str, Any]:
    """Measure what overlapping rollout and training gains, with divergence and reward beside the wall clock.

    Args:
        params: The work. `overlap.lead_groups` is the overlapped run's lead; 0 means one batch.
        pairs: Pairs of a synchronous and an overlapped run.
        steps: Optimizer steps of each run.
        skip_steps: First steps that do not count: engine and trainer warm up in them.
        json_path: File for the figures, relative to the repository root.
    """
    name = name_of(flow_run.id, flow_run.scheduled_start_time)
    params, _ = await preflight(params, name, resume=False, deployments=[overlap.ROLLOUT, overlap.TRAINING])
    synchronous, overlapped = benchmark.variants(params, steps=steps, cpus=benchmark.two_processors())
    wanted = params.environment
    task_sets = await environment_refresh(
        wanted.id, wanted.task_set, wanted.train_tasks, wanted.held_out_tasks, params.seed, first=True
    )
    measured: list[benchmark.Pair] = []
    for number in range(pairs):
        found: dict[int, benchmark.Figures] = {}
        turns = [synchronous, overlapped] if number % 2 == 0 else [overlapped, synchronous]
        for variant in turns:
            lead = variant.overlap.lead_groups
            found[lead] = await one_run(f"{name}-pair{number}-lead{lead}", variant, task_sets, skip_steps)
        pair = benchmark.Pair(found[0], found[overlapped.overlap.lead_groups])
        get_run_logger().info("pair %d: ratio %.3f, bound %.3f", number + 1, pair.ratio, pair.bound)
        measured.append(pair)
    return await benchmark.publish(measured, Path(json_path) if json_path else None)


async def one_run(run: str, params: RunParameters, task_sets: TaskSetVersions, skip_steps: int) -> benchmark.Figures:
    """Roll out and train once, without evaluation and MLflow, and measure it."""
    description = await runs.create(run, params, await base_policy(params), task_sets, mlflow_run=None)
    await runs.open_head(description, params)
    await overlap.roll_out_and_train(run, params)
    store = run_store(run)
    records, spans = await asyncio.to_thread(lambda: (store.steps(), store.spans()))
    return benchmark.measure(params, records, spans, skip=skip_steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Synchronous against overlapped, in pairs.")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", default=None, help="file for the figures")
    given = parser.parse_args()
    asyncio.run(overlap_benchmark(pairs=given.pairs, steps=given.steps, json_path=given.json))
