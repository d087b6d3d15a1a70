"""The MLflow run around a post-training run: opened once, and ended with the right status in every case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from prefect import task

from driftline.errors import DriftlineError
from driftline.params import RunParameters, settings
from driftline.records import RunState
from driftline.tracking import mlflow_run
from tasks.retries import OUTAGE_DELAYS_S, may_pass

logger = logging.getLogger(__name__)

END_DEADLINE_S = 8.0
"""Within the 30 s that a cancelled flow run has, most of which belong to its children."""


@task(
    name="mlflow-run",
    task_run_name="open the MLflow run of {run}",
    timeout_seconds=180,
    retries=len(OUTAGE_DELAYS_S),
    retry_delay_seconds=OUTAGE_DELAYS_S,
    retry_condition_fn=may_pass,
)
async def open_mlflow_run(run: str, params: RunParameters, tags: Mapping[str, str]) -> str | None:
    """Open the MLflow run, or go on in the one that the run had before; None without MLflow."""
    uri = settings().mlflow_uri
    if uri is None:
        return None
    return await asyncio.to_thread(
        mlflow_run.start_run,
        uri,
        params.tracking.experiment,
        run,
        parameters=params.model_dump(mode="json"),
        tags=tags,
    )


@asynccontextmanager
async def ended_run(mlflow_run_id: str | None, *, only_if_it_fails: bool = False) -> AsyncIterator[None]:
    """End the MLflow run with the status that its body deserves: finished, failed, or killed when cancelled."""
    state: RunState = "failed"
    try:
        yield
        state = "finished"
    except asyncio.CancelledError:
        state = "cancelled"
        raise
    finally:
        if mlflow_run_id is not None and not (only_if_it_fails and state == "finished"):
            uri = settings().mlflow_uri or ""
            await best_effort(lambda: mlflow_run.end_run(uri, mlflow_run_id, state), "end the MLflow run")


async def best_effort(call: Callable[[], object], what: str, *, deadline_s: float = END_DEADLINE_S) -> None:
    """Make a call to MLflow whose failure must not fail the run: it is logged."""
    try:
        async with asyncio.timeout(deadline_s):
            await asyncio.to_thread(call)
    except (DriftlineError, TimeoutError) as error:
        logger.warning("could not %s: %s", what, error or f"MLflow took longer than {deadline_s:.0f} s")
