"""Metrics on their way to MLflow: buffered, sent by a thread, never in the way of the run.

    sink = open_sink(settings.mlflow_uri, description.mlflow_run)
    sink.log({metrics.LOSS: 0.12, metrics.TRAIN_SECONDS: 0.5}, step=7)
    sink.close()

| Who | does | waits for | unblocked by |
|---|---|---|---|
| caller of `log` | appends to a bounded queue; when full, the oldest points are lost and counted | nothing | - |
| the thread | sends up to 1000 points a request, retries with backoff | points, or `interval_s` | `log`, `close` |
| caller of `close` | lets the thread empty the queue | at most `deadline_s` | the thread's end |

Several processes may log into one run; none of them ends it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

from driftline.tracking import metrics
from driftline.tracking.traces import EpisodeTrace
from driftline.tracking.transport import MlflowTransport, Point, Refused, Transport

LOG = logging.getLogger(__name__)

BATCH_POINTS = 1000
"""MLflow takes no more metrics in one request."""
CAPACITY_POINTS = 200_000
CAPACITY_TRACES = 100
INTERVAL_S = 2.0
FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
CLOSE_DEADLINE_S = 15.0


class Sink(Protocol):
    """Where the processes of a run leave their metrics. No method blocks on MLflow, except `close`."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Take values by the names of `driftline.tracking.metrics`.

        Raises:
            ConfigurationError: A name is not in the table.
        """
        ...

    def log_episode(self, episode: EpisodeTrace) -> None:
        """Take an episode, to be shown as an MLflow trace."""
        ...

    def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> bool:
        """Send what is left. Returns whether everything arrived. May be called more than once."""
        ...


class NullSink:
    """Drops everything, for runs without MLflow. Names are still checked."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Check the names, and drop the values."""
        metrics.check(values)

    def log_episode(self, episode: EpisodeTrace) -> None:
        """Drop the episode."""

    def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> bool:
        """Do nothing."""
        return True


class MetricsSink:
    """Sends metrics and traces to one MLflow run from a background thread.

    An outage of MLflow is retried for as long as the sink lives; the points wait in memory. What cannot be sent
    before the deadline of `close` goes to the file `spool`, if one is given, from which the next sink with that
    file sends it. Each process needs a file of its own.
    """

    def __init__(
        self,
        mlflow_uri: str,
        run_id: str,
        *,
        spool: Path | None = None,
        capacity: int = CAPACITY_POINTS,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.time,
        connect: Callable[[str, str], Transport] = MlflowTransport,
    ) -> None:
        self.run_id = run_id
        self._uri = mlflow_uri
        self._spool = spool
        self._capacity = capacity
        self._interval_s = interval_s
        self._clock = clock
        self._connect = connect
        self._points: deque[Point] = deque(_read_spool(spool, run_id))
        self._traces: deque[EpisodeTrace] = deque(maxlen=CAPACITY_TRACES)
        self._lost = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-sink", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Points that were taken and have not arrived."""
        return len(self._points)

    @property
    def lost(self) -> int:
        """Points given up: the queue was full, MLflow refused them, or `close` ran out of time without a spool."""
        return self._lost

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Take values; returns at once."""
        metrics.check(values)
        unix_ms = int(self._clock() * 1000)
        with self._lock:
            self._points.extend(Point(name, float(value), unix_ms, step) for name, value in values.items())
            surplus = max(0, len(self._points) - self._capacity)
            for _ in range(surplus):
                self._points.popleft()
            first_loss = surplus > 0 and self._lost == 0
            self._lost += surplus
        if first_loss:
            LOG.warning("MLflow at %s takes no metrics and the queue is full: the oldest are lost", self._uri)

    def log_episode(self, episode: EpisodeTrace) -> None:
        """Take an episode; returns at once. Traces are samples: when too many wait, the oldest are dropped."""
        self._traces.append(episode)

    def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> bool:
        """Send what is left within `deadline_s`; returns whether everything arrived."""
        if self._abandoned.is_set():
            return self._lost == 0
        self._closing.set()
        if self._points or self._traces:
            self._thread.join(deadline_s)
        self._abandoned.set()
        with self._lock:
            left = list(self._points)
            self._points.clear()
        kept = self._keep(left)
        if left:
            where = f"kept in {self._spool}" if kept else "lost"
            LOG.warning(
                "MLflow at %s did not answer in %.0f s: %d values are %s", self._uri, deadline_s, len(left), where
            )
            self._lost += 0 if kept else len(left)
        return not left and self._lost == 0

    def _keep(self, left: list[Point]) -> bool:
        if self._spool is None:
            return False
        return _write_spool(self._spool, self.run_id, left) if left or self._spool.exists() else True

    def _work(self) -> None:
        backoff_s, transport = FIRST_BACKOFF_S, None
        while not self._abandoned.is_set():
            closing = self._closing.is_set()
            try:
                transport = transport or self._connect(self._uri, self.run_id)
                self._send_points(transport)
                self._send_traces(transport)
                backoff_s = FIRST_BACKOFF_S
            except Exception as error:
                LOG.warning(
                    "MLflow at %s: %s: %s; again in %.1f s", self._uri, type(error).__name__, error, backoff_s
                )
                self._pause(FIRST_BACKOFF_S if closing else backoff_s, closing)
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
                continue
            if closing:
                return
            self._pause(self._interval_s, closing)

    def _pause(self, seconds: float, closing: bool) -> None:
        (self._abandoned if closing else self._closing).wait(seconds)

    def _send_points(self, transport: Transport) -> None:
        while not self._abandoned.is_set():
            with self._lock:
                batch = list(islice(self._points, BATCH_POINTS))
            if not batch:
                return
            refused = 0
            try:
                transport.send_points(batch)
            except Refused as error:
                LOG.error("%s; %d values are lost", error, len(batch))
                refused = len(batch)
            with self._lock:
                self._lost += refused
                self._forget(batch)

    def _forget(self, batch: list[Point]) -> None:
        """Drop what was sent; `log` may have dropped some of it from a full queue meanwhile."""
        sent = set(batch)
        while self._points and self._points[0] in sent:
            self._points.popleft()

    def _send_traces(self, transport: Transport) -> None:
        while self._traces and not self._abandoned.is_set():
            episode = self._traces[0]
            try:
                transport.send_trace(episode)
            except Exception as error:
                LOG.warning("a trace of group %d could not be written: %s", episode.group, error)
            with suppress(ValueError):
                self._traces.remove(episode)


def open_sink(mlflow_uri: str | None, run_id: str | None, *, spool: Path | None = None) -> Sink:
    """A sink into the MLflow run, or one that drops everything where there is no MLflow or no run."""
    if mlflow_uri is None or run_id is None:
        return NullSink()
    return MetricsSink(mlflow_uri, run_id, spool=spool)


def _read_spool(spool: Path | None, run_id: str) -> list[Point]:
    """The points that an earlier sink could not send. A spool that cannot be read is passed over."""
    if spool is None or not spool.exists():
        return []
    try:
        kept = [json.loads(line) for line in spool.read_text().splitlines()]
        return [Point(*point) for run, *point in kept if run == run_id]
    except (OSError, ValueError, TypeError) as error:
        LOG.warning("the metrics kept in %s cannot be read: %s", spool, error)
        return []


def _write_spool(spool: Path, run_id: str, points: list[Point]) -> bool:
    """Replace the spool by `points`: those that it held before are among them, or have been sent."""
    try:
        spool.parent.mkdir(parents=True, exist_ok=True)
        spool.write_text("".join(json.dumps([run_id, *point]) + "\n" for point in points))
    except OSError as error:
        LOG.warning("metrics cannot be kept in %s: %s", spool, error)
        return False
    return True
