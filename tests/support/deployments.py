"""The deployments on the tests' Prefect server, and workers that carry out their flow runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import get_current_settings
from prefect.workers.process import ProcessWorker

ROOT = Path(__file__).resolve().parents[2]
POOLS = ("cpu-env", "rollout-gpu", "train-gpu")


async def prefect(*arguments: str) -> tuple[int, str]:
    """Run the `prefect` program against the tests' server; its exit code and output."""
    program = Path(sys.executable).parent / "prefect"
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=ROOT,
        env={**get_current_settings().to_environment_variables(exclude_unset=True), **_environment()},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, " ".join(output.decode().split())


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "DRIFTLINE_HOME"}
    return {**kept, "PREFECT_CLI_PROMPT": "false", "COLUMNS": "200"}


async def deploy(client: PrefectClient) -> None:
    """Once for all tests: a deployment that is there stays."""
    for pool in POOLS:
        with contextlib.suppress(ObjectAlreadyExists):
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    if not await ours(client):
        code, output = await prefect("deploy", "--all")
        assert code == 0, output


async def ours(client: PrefectClient) -> list[DeploymentResponse]:
    """The deployments of this repository."""
    found = await client.read_deployments()
    return [deployment for deployment in found if (deployment.entrypoint or "").startswith("flows.")]


@contextlib.asynccontextmanager
async def serving(client: PrefectClient, *pools: str) -> AsyncIterator[None]:
    """Deploy, and have a worker poll each pool."""
    await deploy(client)
    workers = [
        asyncio.create_task(ProcessWorker(work_pool_name=pool).start(printer=lambda *_: None)) for pool in pools
    ]
    try:
        yield
    finally:
        for worker in workers:
            worker.cancel()
        for worker in workers:
            with contextlib.suppress(asyncio.CancelledError):
                await worker
