"""The report of a run on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from driftline.cli_shared import console
from driftline.params import settings

if TYPE_CHECKING:
    from infra.layout import Layout

REPORT_PATIENCE_S = 10.0


def print_report(layout: Layout, run: str, json_path: Path | None) -> None:
    """Print the report of a run, by its id or as `latest`, and write its figures where a path is given.

    Raises:
        ConfigurationError: There is no such run.
        StoreUnavailable: The store does not answer.
    """
    from driftline.store.client import open_store
    from driftline.tracking.report import build_report, to_json, told
    from infra.layout import read_state

    state = read_state(layout)
    pages = {"Prefect": state.ports.prefect_page, "MLflow": state.ports.mlflow_url} if state else {}
    store = open_store(settings(), patience_s=REPORT_PATIENCE_S)
    found = build_report(store, run, bucket=settings().bucket, pages=pages)
    console.print(told(found))
    if json_path is not None:
        json_path.write_text(to_json(found))
