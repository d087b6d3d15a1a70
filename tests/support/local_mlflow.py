"""MLflow over a database of its own, opened in the test's process."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from driftline.params import settings


def local_mlflow(directory: Path, monkeypatch: pytest.MonkeyPatch, experiment: str) -> MlflowClient:
    """Make Driftline log there; `experiment` keeps its artifacts there as well."""
    uri = f"sqlite:///{directory / 'mlflow.db'}"
    monkeypatch.setenv("DRIFTLINE_MLFLOW_URI", uri)
    settings.cache_clear()
    found = MlflowClient(tracking_uri=uri, registry_uri=uri)
    found.create_experiment(experiment, artifact_location=(directory / "artifacts").as_uri())
    return found
