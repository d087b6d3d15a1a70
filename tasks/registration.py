"""The final policy as a model directory in the store, and as a version of an MLflow model."""

from __future__ import annotations

import asyncio

from prefect import task

from driftline.params import RunParameters, settings
from driftline.records import RunDescription
from driftline.store import keys
from driftline.tracking.mlflow_run import register_policy
from driftline.tracking.model_card import model_card
from driftline.tracking.report import Report
from tasks.logs import run_logger
from tasks.processes import run_module
from tasks.reporting import read_report
from tasks.stores import run_store
from tasks.surroundings import training_environment

EXPORTER = "driftline.weights.export"
SMOLLM2_LICENSE = "apache-2.0"


@task(name="export-policy", task_run_name="export the policy of {run}", retries=1, retry_delay_seconds=2)
async def export_policy(run: str, params: RunParameters) -> str:
    """Assemble the final policy into a model directory under the run; returns its address in S3."""
    await run_module(EXPORTER, "--run", run, env=training_environment(params))
    return f"s3://{settings().bucket}/{keys.final_model_prefix(run)}"


@task(name="register-policy", task_run_name="register {params.tracking.registered_model}", retries=2,
      retry_delay_seconds=2)  # fmt: skip
async def register(description: RunDescription, params: RunParameters, source: str) -> int | None:
    """Write the model card, and register the policy in MLflow; returns the version, None without MLflow."""
    store = run_store(description.run)
    report = await asyncio.to_thread(read_report, store, description)
    card = model_card(report, description)
    await asyncio.to_thread(store.store.put, f"{keys.final_model_prefix(description.run)}README.md", card.encode())
    uri = settings().mlflow_uri
    if uri is None or description.mlflow_run is None:
        run_logger().info("without MLflow the policy is not registered; it is at %s", source)
        return None
    name = params.tracking.registered_model
    version = await asyncio.to_thread(
        register_policy,
        uri,
        name,
        source=source,
        run_id=description.mlflow_run,
        description=card,
        tags=version_tags(report, description),
    )
    run_logger().info("registered %s version %d: %s", name, version, source)
    return version


def version_tags(report: Report, description: RunDescription) -> dict[str, str]:
    """What the model registry shows beside the version."""
    found = {
        "driftline.run": description.run,
        "driftline.code_version": description.code_version,
        "driftline.task_set": description.task_set,
        "driftline.base": description.model.digest,
        "held_out_success_base": report.held_out_success_base,
        "held_out_success_final": report.held_out_success_final,
    }
    return {name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in found.items()}
