# pyright: basic
"""Task-set versions in MLflow: each is a dataset, an input of the run that made it.

The tasks stay where they are. MLflow is told the digest, the address, how many tasks of which pools there are, and
what every stage of the refresh counted; versions of a set are found as runs of the experiment `driftline-task-sets`.
"""

from __future__ import annotations

import json
from typing import Any

from driftline.store.tasksets import TaskSetManifest
from driftline.tracking.client import connect
from driftline.tracking.mlflow_run import experiment_id, reports_outages

EXPERIMENT = "driftline-task-sets"
VERSION_TAG = "driftline.task_set_version"


@reports_outages
def log_task_set(mlflow_uri: str, manifest: TaskSetManifest, bucket: str, report: str) -> str:
    """Register a version; doing it again changes nothing.

    Args:
        mlflow_uri: The server's address.
        manifest: Of the version.
        bucket: That holds it.
        report: Of the refresh, as Markdown.

    Returns:
        The id of the MLflow run whose input the dataset is.

    Raises:
        TrackingUnavailable: MLflow does not answer.
    """
    from mlflow.entities import Metric

    client = connect(mlflow_uri)
    experiment = experiment_id(client, EXPERIMENT)
    tag = f"{manifest.name}/{manifest.version}"
    found = client.search_runs([experiment], f"tags.`{VERSION_TAG}` = '{tag}'", max_results=1)
    if found and found[0].info.status == "FINISHED":
        return found[0].info.run_id
    tags = {VERSION_TAG: tag, **{f"driftline.{name}": value[:5000] for name, value in manifest.lineage.items()}}
    run = found[0] if found else client.create_run(experiment, tags=tags, run_name=tag)
    run_id, when = run.info.run_id, int(manifest.created_unix * 1000)
    client.log_inputs(run_id, datasets=[dataset_input(manifest, bucket)])
    metrics = [Metric(name, value, when, 0) for name, value in sorted(manifest.statistics.items())]
    client.log_batch(run_id, metrics=metrics)
    client.log_text(run_id, report, "report.md")
    client.set_terminated(run_id)
    return run_id


def dataset_input(manifest: TaskSetManifest, bucket: str) -> Any:
    """A version as MLflow has it: an entity of `mlflow.data`, used for training or evaluation."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = {"tasks": manifest.tasks, "environments": dict(manifest.environments), "pools": dict(manifest.pools)}
    dataset = Dataset(
        name=manifest.name,
        digest=manifest.version,
        source_type="s3",
        source=json.dumps({"uri": f"s3://{bucket}/{manifest.file.key}"}),
        profile=json.dumps(profile),
    )
    context = "eval" if manifest.split == "held-out" else "train"
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", context)])
