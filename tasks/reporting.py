"""The end of a run: its report in Prefect, its figures, picture and report in MLflow."""

from __future__ import annotations

import asyncio
import json

from prefect import task

from driftline.params import settings
from driftline.records import RunDescription
from driftline.store.run_store import RunStore
from driftline.tracking import attribution, mlflow_run
from driftline.tracking.report import Report, build_report, render, render_html, to_json
from driftline.tracking.sink import open_sink
from driftline.tracking.summary import record_spans, step_metrics
from driftline.tracking.timeline import draw
from tasks.artifacts import show_report
from tasks.logs import run_logger
from tasks.retries import OUTAGE_DELAYS_S, may_pass
from tasks.stores import run_store
from tasks.tracking import best_effort

WRITE_S = 120.0


@task(
    name="report",
    task_run_name="report of {description.run}",
    timeout_seconds=600,
    retries=len(OUTAGE_DELAYS_S),
    retry_delay_seconds=OUTAGE_DELAYS_S,
    retry_condition_fn=may_pass,
)
async def publish_report(description: RunDescription) -> str:
    """Write the report: as a Prefect artifact, into the flow run's log, and into the MLflow run. Returns its JSON."""
    store = run_store(description.run)
    report = await asyncio.to_thread(read_report, store, description)
    run_logger().info("\n%s", render(report))
    await show_report(report)
    uri = settings().mlflow_uri
    if uri is not None and description.mlflow_run is not None:
        run_id = description.mlflow_run
        await best_effort(
            lambda: write_to_mlflow(uri, run_id, store, report), "attach the report in MLflow", deadline_s=WRITE_S
        )
    return to_json(report)


def read_report(store: RunStore, description: RunDescription) -> Report:
    """The report as it stands, with the page of its MLflow run."""
    found = settings()
    pages: dict[str, str] = {}
    if found.mlflow_uri is not None and description.mlflow_run is not None:
        page = mlflow_run.run_page(found.mlflow_uri, description.mlflow_run)
        pages = {"MLflow page": page} if page else {}
    return build_report(store.store, description.run, bucket=found.bucket, pages=pages)


def write_to_mlflow(uri: str, run_id: str, store: RunStore, report: Report) -> None:
    """Log what only the whole timeline shows, and attach picture, report and parameters."""
    records, spans, parameters = store.steps(), store.spans(), store.describe().parameters
    sink = open_sink(uri, run_id)
    idle = attribution.step_metrics(records, spans, attribution.prices_of(parameters))
    for step, values in step_metrics(records, spans).items():
        sink.log(values | idle[step], step=step)
    sink.close()
    files: dict[str, bytes | str] = {
        "report.json": to_json(report),
        "report.txt": render(report),
        "report.html": render_html(report),
        "parameters.json": json.dumps(parameters, indent=2, sort_keys=True),
    }
    picture = draw(
        [*spans, *record_spans(records)],
        title=f"run {report.run}",
        commits=[record.times.committed for record in records],
    )
    if picture is not None:
        files["timeline.png"] = picture
    mlflow_run.log_artifacts(uri, run_id, files)
