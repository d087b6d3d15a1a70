# pyright: basic
"""What the sink's thread sends, and how it reaches MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from driftline.errors import DriftlineError
from driftline.tracking.client import connect, is_permanent
from driftline.tracking.traces import EpisodeTrace, write_trace


class Point(NamedTuple):
    """One value of one metric. `unix_ms` makes sending it twice harmless: MLflow keeps equal points once."""

    name: str
    value: float
    unix_ms: int
    step: int


class Refused(DriftlineError, ValueError):
    """MLflow refused the request itself; sending it again cannot help."""


class Transport(Protocol):
    """One run's way into MLflow. Both methods block, and may be repeated after a failure."""

    def send_points(self, points: Sequence[Point]) -> None:
        """Send at most 1000 points.

        Raises:
            Refused: MLflow will never take them.
            Exception: Anything else is an outage.
        """
        ...

    def send_trace(self, episode: EpisodeTrace) -> None:
        """Send one episode."""
        ...


class MlflowTransport:
    """Sends into the run `run_id` of the MLflow server at `mlflow_uri`. Making one imports MLflow."""

    def __init__(self, mlflow_uri: str, run_id: str) -> None:
        self._run_id = run_id
        self._client = connect(mlflow_uri)

    def send_points(self, points: Sequence[Point]) -> None:
        """Send at most 1000 points in one request."""
        from mlflow.entities import Metric

        batch = [Metric(point.name, point.value, point.unix_ms, point.step) for point in points]
        try:
            self._client.log_batch(self._run_id, metrics=batch)
        except Exception as error:
            if is_permanent(error):
                raise Refused(f"MLflow refuses metrics of run {self._run_id}: {error}") from error
            raise

    def send_trace(self, episode: EpisodeTrace) -> None:
        """Write one episode as a trace."""
        write_trace(self._client, self._run_id, episode)
