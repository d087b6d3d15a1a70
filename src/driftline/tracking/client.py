# pyright: basic
"""The one place that makes an MLflow client.

MLflow is imported here, when a client is first wanted: the import takes seconds, and processes without metrics
never pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

_REQUEST_RETRIES = 1
_REQUEST_TIMEOUT_S = 20


def connect(mlflow_uri: str) -> MlflowClient:
    """Make a client of the MLflow server (or `sqlite:///` file) at `mlflow_uri`.

    MLflow's own retries go on for minutes inside one call; here its callers retry, so they are cut to one, unless
    the process environment sets them. Traces always go to the process-wide tracking URI, which is therefore set; they
    are written when they end (its callers are background threads already).
    """
    import mlflow
    from mlflow import environment_variables as variables

    if not variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.is_set():
        variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.set(_REQUEST_RETRIES)
    if not variables.MLFLOW_HTTP_REQUEST_TIMEOUT.is_set():
        variables.MLFLOW_HTTP_REQUEST_TIMEOUT.set(_REQUEST_TIMEOUT_S)
    variables.MLFLOW_ENABLE_ASYNC_TRACE_LOGGING.set(False)
    mlflow.set_tracking_uri(mlflow_uri)
    return mlflow.MlflowClient(tracking_uri=mlflow_uri, registry_uri=mlflow_uri)


def is_permanent(error: Exception) -> bool:
    """Whether MLflow refused the request itself (no such run, invalid value), so that repeating it cannot help."""
    from mlflow.exceptions import MlflowException

    return isinstance(error, MlflowException) and error.get_http_status_code() in (400, 404)
