"""What must be right before a run starts. Each check that fails says the remedy, and nothing has been done yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random

from prefect import task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import WorkPoolStatus
from prefect.exceptions import ObjectNotFound

from driftline.environment import TaskFamily, parts_of, resolve
from driftline.errors import ConfigurationError
from driftline.params import RunParameters, Settings, settings
from driftline.records import RunDescription
from driftline.store.client import probe_conditional_writes
from driftline.tracking.mlflow_run import check_server
from tasks.episodes import play
from tasks.flow_runs import not_deployed
from tasks.logs import run_logger
from tasks.model import check_model
from tasks.retries import MAY_PASS
from tasks.runs import check_agreement, find_description, was_begun
from tasks.stores import opened

STORE_PATIENCE_S = 5.0
WORKER_PATIENCE_S = 30.0
"""How long a pool may take to show a worker that has just started."""
RESUME_PATIENCE_S = 300.0
"""How long a run that is resumed waits for what it needs: the cause of its end may have taken more along."""
POLL_S = 1.0
RETRY_S = 3.0


@task(name="preflight", task_run_name="check what {run} needs", timeout_seconds=900)
async def preflight(
    params: RunParameters, run: str, *, resume: bool, deployments: Sequence[str]
) -> tuple[RunParameters, RunDescription | None]:
    """Check everything that can be known at start; the children are `deployments`.

    Returns:
        The run's parameters, and its description if it has begun already.

    Raises:
        ConfigurationError: The bucket cannot hold a run, the run to resume is not there or has other parameters, a
            model directory is none, there is no such environment, or a deployment or its worker is missing.
        StoreUnavailable: The store or its bucket is not there. A run that is resumed waits for it.
        TrackingUnavailable: MLflow does not answer. A run that is resumed waits for it.
        EnvironmentFailed: The environment raises, or does not answer in time.
    """
    found = settings()
    patience_s = RESUME_PATIENCE_S if resume else 0.0
    await _patiently(lambda: check_store(found), patience_s)
    description = await find_description(run)
    if description is not None:
        params = check_agreement(params, description)
    elif resume and not await was_begun(run):
        raise ConfigurationError(f"run: there is no run {run!r} in the store; leave `run` out to start a new one")
    uri = found.mlflow_uri
    if uri is not None:
        await _patiently(lambda: check_server(uri), patience_s)
    await asyncio.to_thread(check_model, params)
    await check_environment(params)
    await asyncio.gather(*(check_deployment(name, max(WORKER_PATIENCE_S, patience_s)) for name in deployments))
    return params, description


async def _patiently(check: Callable[[], None], patience_s: float) -> None:
    """Make a check again, in a thread, while it fails for what may pass and there is patience left."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return await asyncio.to_thread(check)
        except MAY_PASS as error:
            if time.monotonic() > until:
                raise
            run_logger().warning("waiting: %s", error)
        await asyncio.sleep(RETRY_S)


def check_store(found: Settings) -> None:
    """Reach the bucket and see that it takes conditional writes."""
    probe_conditional_writes(opened(found, STORE_PATIENCE_S))


async def check_environment(params: RunParameters) -> None:
    """Find the environment, or each of a mixture, and play the beginning of one episode within its deadlines."""
    whole = resolve(params.environment.id)
    _ = whole.stop
    for part in parts_of(whole, params.environment.id):
        family = part.family
        if params.model.source == "warm_start":
            _check_warm_start(family)
        sample = family.generate(seed=0, count=1)[0]
        actions = list(family.oracle(sample) or ("",))
        await play(params, family, sample, actions[:1], name=part.name)


def _check_warm_start(family: TaskFamily) -> None:
    sample = family.generate(seed=0, count=1)[0]
    if family.alphabet is None or family.demonstrate(sample, Random(0)) is None:
        raise ConfigurationError(
            f"model.source: {family.id} has no alphabet or no demonstrations for a warm start: "
            "set model.source to directory or smollm2"
        )


async def check_deployment(name: str, patience_s: float) -> None:
    """See that a deployment exists, and that a worker polls its pool."""
    async with get_client() as client:
        try:
            deployment = await client.read_deployment_by_name(name)
        except ObjectNotFound:
            raise ConfigurationError(not_deployed(name)) from None
        if deployment.work_pool_name is None:
            return
        deadline = time.monotonic() + patience_s
        pool = await client.read_work_pool(deployment.work_pool_name)
        while pool.status is WorkPoolStatus.NOT_READY and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            pool = await client.read_work_pool(deployment.work_pool_name)
    if pool.status is WorkPoolStatus.PAUSED:
        raise ConfigurationError(f"the work pool {pool.name!r} is paused: `prefect work-pool resume {pool.name}`")
    if pool.status is WorkPoolStatus.NOT_READY:
        raise ConfigurationError(
            f"no worker polls the work pool {pool.name!r}: start one (`driftline up`, or "
            f"`prefect worker start --pool {pool.name}`)"
        )
