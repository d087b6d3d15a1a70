# pyright: basic
"""The MLflow run of a post-training run: opened, filled and ended by the parent flow.

The children log into it through `driftline.tracking.sink`, and never end it. A resumed run goes on in the same
MLflow run, which is found by its tag `driftline.run`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from driftline.errors import ConfigurationError, TrackingUnavailable
from driftline.records import RunState
from driftline.tracking.client import connect, is_permanent

RUN_TAG = "driftline.run"
PARAMETERS_FILE = "parameters.json"
STATUS: Mapping[RunState, str] = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
}
_PARAMETER_LIMIT = 6000
_PARAMETERS_A_CALL = 100

P = ParamSpec("P")
R = TypeVar("R")


def reports_outages(call: Callable[P, R]) -> Callable[P, R]:
    """Turn MLflow's errors into ours: refused requests are the caller's mistake, the rest are outages."""

    @wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except (ConfigurationError, TrackingUnavailable):
            raise
        except Exception as error:
            if is_permanent(error):
                raise ConfigurationError(f"MLflow refuses the request: {error}") from error
            where = args[0] if args else kwargs.get("mlflow_uri")
            raise TrackingUnavailable(
                f"MLflow at {where} does not answer ({error}): start it, or unset DRIFTLINE_MLFLOW_URI"
            ) from error

    return wrapped


@reports_outages
def start_run(
    mlflow_uri: str, experiment: str, run: str, *, parameters: Mapping[str, Any], tags: Mapping[str, str]
) -> str:
    """Open the MLflow run of `run`: a new one, or the one it had before.

    Args:
        mlflow_uri: The server's address.
        experiment: Name of the experiment, created if missing.
        run: Name of the post-training run.
        parameters: `RunParameters.model_dump(mode="json")`; logged by dotted name, and as `parameters.json`.
        tags: At least the code version and the task-set version.

    Returns:
        The id of the MLflow run.

    Raises:
        ConfigurationError: The experiment was deleted in MLflow.
        TrackingUnavailable: MLflow does not answer.
    """
    client = connect(mlflow_uri)
    within = experiment_id(client, experiment)
    found = client.search_runs([within], f"tags.`{RUN_TAG}` = '{run}'", max_results=1)
    if found:
        run_id = found[0].info.run_id
        client.update_run(run_id, status="RUNNING")
        for key, value in tags.items():
            client.set_tag(run_id, key, value)
        return run_id
    run_id = client.create_run(within, tags={**tags, RUN_TAG: run}, run_name=run).info.run_id
    _log_parameters(client, run_id, parameters)
    client.log_dict(run_id, dict(parameters), PARAMETERS_FILE)
    return run_id


@reports_outages
def check_server(mlflow_uri: str) -> None:
    """See that MLflow answers.

    Raises:
        TrackingUnavailable: It does not.
    """
    connect(mlflow_uri).search_experiments(max_results=1)


@reports_outages
def end_run(mlflow_uri: str, run_id: str, state: RunState) -> None:
    """Set the MLflow run's final status. Called by the owner of the run alone."""
    connect(mlflow_uri).set_terminated(run_id, status=STATUS[state])


@reports_outages
def log_artifacts(mlflow_uri: str, run_id: str, files: Mapping[str, bytes | str]) -> None:
    """Store files with the MLflow run, by path; existing ones are replaced."""
    client = connect(mlflow_uri)
    with tempfile.TemporaryDirectory(prefix="driftline-artifacts-") as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        client.log_artifacts(run_id, folder)


@reports_outages
def register_policy(
    mlflow_uri: str, name: str, *, source: str, run_id: str, description: str, tags: Mapping[str, str]
) -> int:
    """Register a policy's directory as a version of the MLflow model `name`. Repeating it changes nothing.

    Args:
        mlflow_uri: The server's address.
        name: Registered model, created if missing.
        source: Address of the model directory, such as `s3://bucket/runs/<run>/model/`.
        run_id: The MLflow run that made it.
        description: The model card.
        tags: Tags of the version.

    Returns:
        The version's number.
    """
    from mlflow.exceptions import MlflowException

    client = connect(mlflow_uri)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    for version in client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'"):
        if version.source == source:
            return int(version.version)
    made = client.create_model_version(name, source, run_id=run_id, tags=dict(tags), description=description)
    return int(made.version)


@reports_outages
def run_page(mlflow_uri: str, run_id: str) -> str | None:
    """The address of the run's page, or None where MLflow is no server."""
    if not mlflow_uri.startswith(("http://", "https://")):
        return None
    within = connect(mlflow_uri).get_run(run_id).info.experiment_id
    return f"{mlflow_uri.rstrip('/')}/#/experiments/{within}/runs/{run_id}"


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested parameters as dotted names and texts."""
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def experiment_id(client: Any, name: str) -> str:
    """The id of an experiment, which is made if there is none.

    Raises:
        ConfigurationError: It was deleted in MLflow.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found.lifecycle_stage != "active":
        raise ConfigurationError(
            f"tracking.experiment: {name!r} was deleted in MLflow: restore it there, or choose another name"
        )
    return found.experiment_id


def _log_parameters(client: Any, run_id: str, parameters: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    params = [Param(key, value[:_PARAMETER_LIMIT]) for key, value in flatten(parameters)]
    for first in range(0, len(params), _PARAMETERS_A_CALL):
        client.log_batch(run_id, params=params[first : first + _PARAMETERS_A_CALL])
