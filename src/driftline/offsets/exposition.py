"""The same figures for Prometheus: gauges of the running runs, absent where nothing was measured. Pure.

A metric of `docs/metrics.md` keeps its name, in Prometheus' letters: `divergence/k3_nats` is
`driftline_divergence_k3_nats`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from driftline.measured import Cause
from driftline.offsets import answers
from driftline.offsets.figures import KEPT
from driftline.offsets.followed import Latest
from driftline.offsets.models import Engine
from driftline.offsets.reader import RunView
from driftline.offsets.series import SEVERITY
from driftline.tracking.metrics import TABLE

RUN_GAUGES: Mapping[str, str] = {
    "run_step": "Committed optimizer steps.",
    "run_steps_planned": "Optimizer steps of the whole run.",
    "run_version": "Number of the current policy version.",
    "run_lead_groups": "Groups that generation may be ahead.",
    "run_budget_k3_nats": "Most k3 a token that a batch should have.",
    "run_seconds_since_commit": "Since the last step was committed.",
    "run_age_seconds": "Since the store was read for these figures.",
}
ENGINE_GAUGES: Mapping[str, str] = {
    "engine_version": "Policy version that the engine has acknowledged.",
    "engine_lag_versions": "Versions that the engine is behind the current policy.",
    "engine_lag_seconds": "Since the first version that the engine lacks was committed; 0 while it lacks none.",
    "engine_heartbeat_age_seconds": "Since the engine's cell was last heard of.",
    "engine_divergence_k3_nats": "k3 of the engine's tokens in the last steps.",
    "engine_floor_k3_nats": "k3 of the engine's tokens of lag 0 in the last steps.",
    "engine_probe_difference_nats": "Largest difference from the probe of the engine's version.",
    "engine_pause_seconds": "How long the last update kept the engine paused.",
    "engine_running_episodes": "Episodes in flight.",
    "engine_waiting_episodes": "Episodes that wait for the engine.",
}


def prometheus_name(metric: str) -> str:
    """The name of a metric in Prometheus."""
    return "driftline_" + re.sub("[^a-z0-9_]", "_", metric)


def expose(found: Sequence[Latest[RunView]], now: float, *, unread: int, store_requests: Mapping[str, int]) -> bytes:
    """The text that Prometheus scrapes.

    Args:
        found: The running runs.
        now: Unix seconds.
        unread: Running runs that could not be read in time.
        store_requests: Requests sent to the store so far, by operation.
    """
    families: list[Metric] = [
        *_of_runs(found, now),
        *_of_engines(found, now),
        *_of_steps(found),
        _by_lag(found),
        _diagnosis(found),
        GaugeMetricFamily("driftline_offsets_unread_runs", "Running runs that cannot be read.", value=unread),
        _store_requests(store_requests),
    ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)


class _Collected:
    """Families that are known already, as a collector."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


def _of_runs(found: Sequence[Latest[RunView]], now: float) -> list[Metric]:
    families = {
        name: GaugeMetricFamily(f"driftline_{name}", text, labels=["run"]) for name, text in RUN_GAUGES.items()
    }
    for one in found:
        where = answers.offset(one, now)
        since = None if where.committed_unix is None else max(0.0, now - where.committed_unix)
        values = (
            where.step,
            where.steps_planned,
            where.version,
            where.lead_groups,
            where.budget_k3_nats,
            since,
            where.age_s,
        )
        for family, value in zip(families.values(), values, strict=True):
            _add(family, [where.run], value)
    return [*families.values()]


def _of_engines(found: Sequence[Latest[RunView]], now: float) -> list[Metric]:
    labels = ["run", "engine"]
    families = {
        name: GaugeMetricFamily(f"driftline_{name}", text, labels=labels) for name, text in ENGINE_GAUGES.items()
    }
    for one in found:
        for report in one.value.engines:
            engine = answers.engine(one.value, report, now)
            for family, value in zip(families.values(), _engine_values(engine), strict=True):
                _add(family, [one.value.run, engine.engine], value)
    return [*families.values()]


def _engine_values(engine: Engine) -> tuple[float | None, ...]:
    return (
        engine.version,
        engine.lag_versions,
        engine.lag_seconds,
        engine.heartbeat_age_s,
        engine.divergence.k3_nats if engine.divergence is not None else None,
        engine.floor_k3_nats,
        engine.probe_difference_nats,
        engine.pause_s,
        engine.running_episodes,
        engine.waiting_episodes,
    )


def _of_steps(found: Sequence[Latest[RunView]]) -> Iterable[Metric]:
    """The last step's metrics, under their own names."""
    for name in KEPT:
        row = TABLE[name]
        family = GaugeMetricFamily(prometheus_name(name), f"{row.meaning} ({row.unit})", labels=["run"])
        for one in found:
            steps = one.value.steps
            _add(family, [one.value.run], steps[-1].value(name) if steps else None)
        yield family


def _by_lag(found: Sequence[Latest[RunView]]) -> Metric:
    family = GaugeMetricFamily(
        "driftline_divergence_by_lag_k3_nats", "k3 of the last batch's tokens of each lag.", labels=["run", "lag"]
    )
    for one in found:
        if one.value.steps:
            for lag, summary in one.value.steps[-1].by_lag.items():
                _add(family, [one.value.run, str(lag)], answers.finite(summary.k3))
    return family


def _diagnosis(found: Sequence[Latest[RunView]]) -> Metric:
    """One series a cause, 1 for the one that is named; none where nothing was diagnosed."""
    family = GaugeMetricFamily("driftline_diagnosis", "The cause of the run's divergence.", labels=["run", "cause"])
    for one in found:
        named: Cause | None = None
        if one.value.steps and one.value.steps[-1].diagnosis is not None:
            named = one.value.steps[-1].diagnosis.cause
        for cause in SEVERITY if named is not None else ():
            _add(family, [one.value.run, cause], float(cause == named))
    return family


def _store_requests(counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "driftline_offsets_store_requests", "Requests that this service has sent to the store.", labels=["operation"]
    )
    for operation, count in sorted(counts.items()):
        family.add_metric([operation], count)
    return family


def _add(family: GaugeMetricFamily, labels: Sequence[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
