"""The final policy as a model directory in the store, and as a version of an MLflow model."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

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
from tasks.retries import OUTAGE_DELAYS_S, may_pass
from tasks.stores import run_store
from tasks.surroundings import training_environment

EXPORTER = "driftline.weights.export"
LICENSES = {"warm_start": "apache-2.0", "smollm2": "apache-2.0"}
"""Of the weights, by where the base policy comes from; a user's own model has a licence that is not ours to name."""


@dataclass(frozen=True, slots=True)
class ExportedPolicy:
    """The final policy as a model directory: its address in the store, and the text of its card."""

    source: str
    card: str


@task(
    name="export-policy",
    task_run_name="export the policy of {description.run}",
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=may_pass,
)
async def export_policy(description: RunDescription, params: RunParameters) -> ExportedPolicy:
    """Assemble the final policy, with its card, into a model directory under the run."""
    report = await asyncio.to_thread(read_report, run_store(description.run), description)
    card = model_card(report, description, license_name=LICENSES.get(params.model.source, "other"))
    with tempfile.TemporaryDirectory(prefix="driftline-card-") as folder:
        file = Path(folder) / "README.md"
        file.write_text(card, encoding="utf-8")
        await run_module(EXPORTER, "--run", description.run, "--card", str(file), env=training_environment(params))
    source = f"s3://{settings().bucket}/{keys.final_model_prefix(description.run)}"
    run_logger().info("the policy is at %s", source)
    return ExportedPolicy(source, card)


@task(
    name="register-policy",
    task_run_name="register {params.tracking.registered_model}",
    timeout_seconds=300,
    retries=len(OUTAGE_DELAYS_S),
    retry_delay_seconds=OUTAGE_DELAYS_S,
    retry_condition_fn=may_pass,
)
async def register(description: RunDescription, params: RunParameters, policy: ExportedPolicy) -> int | None:
    """Register the policy in MLflow; returns the version, None without MLflow."""
    uri = settings().mlflow_uri
    if uri is None or description.mlflow_run is None:
        return None
    report = await asyncio.to_thread(read_report, run_store(description.run), description)
    name = params.tracking.registered_model
    version = await asyncio.to_thread(
        register_policy,
        uri,
        name,
        source=policy.source,
        run_id=description.mlflow_run,
        description=policy.card,
        tags=version_tags(report, description),
    )
    run_logger().info("registered %s version %d", name, version)
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
