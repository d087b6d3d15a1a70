"""What Prometheus scrapes, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from driftline.offsets.exposition import prometheus_name
from driftline.offsets.figures import KEPT
from driftline.offsets.routes import PROMETHEUS
from driftline.records import encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.causes import CAUSES
from tests.support import offset_runs
from tests.support.offset_service import served

DASHBOARD = Path("infra/grafana/offsets.json")
SMALL: Any = {"groups": 2, "members": 4}
NOW = offset_runs.commit_time(10) + 3.0


async def scraped(store: MemoryStore) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> label values -> value."""
    async with served(store, clock=lambda: NOW) as client:
        answer = await client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, PROMETHEUS)
    return {
        family.name: {_labels(sample.labels): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(answer.text)
    }


def _labels(labels: Mapping[str, str]) -> tuple[str, ...]:
    """The values, that of the run first."""
    return tuple(labels[name] for name in sorted(labels, key=lambda name: (name != "run", name)))


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    run_store = offset_runs.write_run(found, "r", 10, engines={"c0": 10}, causes=[(1, "staleness")], **SMALL)
    run_store.write_offset(offset_runs.report("r", "c1", 8, NOW - 30.0, probe_difference_nats=0.5))
    offset_runs.write_run(found, "done", 3, **SMALL)
    found.put(keys.head("done"), encode(offset_runs.head("done", 3, state="finished")))
    return found


async def test_gauges_of_running_runs_under_the_names_of_mlflow(store: MemoryStore):
    found = await scraped(store)
    assert found["driftline_divergence_k3_nats"] == {("r",): 0.01}
    assert found["driftline_run_step"] == {("r",): 10}
    assert found["driftline_run_seconds_since_commit"] == {("r",): 3.0}
    assert found["driftline_engine_lag_versions"] == {("r", "c0"): 0, ("r", "c1"): 2}
    assert found["driftline_engine_lag_seconds"][("r", "c1")] == NOW - offset_runs.commit_time(9)
    assert found["driftline_engine_heartbeat_age_seconds"][("r", "c1")] == 30.0
    assert found["driftline_engine_probe_difference_nats"] == {("r", "c1"): 0.5}
    assert found["driftline_divergence_by_lag_k3_nats"][("r", "1")] == 0.01
    assert found["driftline_diagnosis"] == {
        ("r", cause): float(cause == "staleness")
        for cause in ("healthy", "staleness", "engine mismatch", "failed weight sync")
    }
    assert found["driftline_ledger_trained_tokens"] == {("r",): 9_000}
    assert found["driftline_offsets_unread_runs"] == {(): 0}
    assert sum(found["driftline_offsets_store_requests"].values()) > 10


async def test_what_was_not_measured_is_absent_rather_than_zero():
    store = MemoryStore()
    offset_runs.write_run(store, "old", 4, measured=False, **SMALL)
    found = await scraped(store)
    for name in ("diagnosis", "divergence_by_lag_k3_nats", "engine_divergence_k3_nats", "divergence_chi_square"):
        assert found.get(f"driftline_{name}", {}) == {}
    assert found["driftline_divergence_k3_nats"] == {("old",): 0.01}


async def test_a_run_that_cannot_be_read_is_counted_and_does_not_hide_the_others(store: MemoryStore):
    offset_runs.write_run(store, "broken", 3, **SMALL)
    store.put(keys.step("broken", 2, 1), b"{")
    found = await scraped(store)
    assert found["driftline_offsets_unread_runs"] == {(): 1}
    assert found["driftline_run_step"] == {("r",): 10}


@pytest.mark.parametrize("run", ['a"b', "a\\b", "a\nb", 'x"} 1\ndriftline_run_step{run="y', "späte Läufe ☃", "{}"])
async def test_a_run_of_any_name_is_one_label_and_no_other_line(run: str):
    store = MemoryStore()
    offset_runs.write_run(store, run, 3, **SMALL)
    found = await scraped(store)
    assert found["driftline_run_step"] == {(run,): 3}
    assert found["driftline_engine_version"] == {(run, "c0"): 3, (run, "c1"): 3}


def test_names_are_what_prometheus_takes_and_none_is_taken_twice():
    names = [prometheus_name(name) for name in metrics.TABLE]
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert len(set(names)) == len(names)


async def test_the_dashboard_asks_only_for_what_there_is(store: MemoryStore):
    """With every figure measured, each metric that a panel queries is in the answer."""
    record = offset_runs.record("full", 10, None, **SMALL)
    full = replace(record, metrics={**record.metrics, **{name: 0.5 for name in KEPT if name not in record.metrics}})
    run_store = RunStore(store, "full")
    run_store.create(offset_runs.description("full"))
    offset_runs.commit(store, full)
    exposed = {name for name, samples in (await scraped(store)).items() if samples}
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"driftline_[a-z0-9_]+", query)}
    assert len(asked) > 15
    counters = {f"{name}_total" for name in exposed}
    assert asked - exposed - counters == set()


def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]


def test_the_dashboard_is_for_any_prometheus_and_any_run():
    found = json.loads(DASHBOARD.read_text())
    assert {variable["name"] for variable in found["templating"]["list"]} == {"source", "run"}
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert all('run=~"$run"' in target["expr"] for target in panel["targets"])
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels()]
    assert len(set(places)) == len(places)


def test_page_and_dashboard_show_every_cause_of_the_time_to_a_batch():
    panels = Path("src/driftline/offsets/page/panels.js").read_text()
    style = Path("src/driftline/offsets/page/style.css").read_text()
    shown = re.search(r"const causes = (\[.*?\]);", panels)
    assert shown is not None
    assert json.loads(shown[1]) == list(CAUSES)
    assert all(f".f{number} " in style and style.count(f"--c{number}:") == 2 for number in range(len(CAUSES)))
    asked = DASHBOARD.read_text()
    assert [cause for cause in CAUSES if f"driftline_time_to_batch_{cause}_seconds" not in asked] == []
