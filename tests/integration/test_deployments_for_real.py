"""Deployments on a stack of their own, by the command a user types: a pretrained model, and the overlap benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.params import Settings
from driftline.store.client import S3Store
from driftline.store.run_store import RunStore, list_runs
from driftline.tracking.report import build_report
from infra import flow_server, processes, stack
from infra.layout import Layout, StackState
from infra.stack import StartOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).resolve().parents[2]
Stack = tuple[Layout, StackState]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack, with its deployments, on ports of its own."""
    layout = Layout.of(tmp_path_factory.mktemp("deployments") / "stack", REPOSITORY)
    settings = Settings(prefect_port=24300, mlflow_port=25100, s3_port=28433)  # pyright: ignore[reportCallIssue]
    try:
        yield (
            layout,
            stack.up(layout, settings, StartOptions(auto_ports=True, start_deadline_s=400), lambda line: None),
        )
    finally:
        stack.down(layout)
        processes.end_marked(layout.root, terminate_s=1)


def run_deployment(running: Stack, name: str, **parameters: Any) -> None:
    layout, state = running
    given = [part for key, value in parameters.items() for part in ("--param", f"{key}={json.dumps(value)}")]
    assert flow_server.run_prefect(layout, state, ["deployment", "run", name, *given, "--watch"]) == 0


def opened(running: Stack, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    layout, state = running
    for name, value in (stack.connection(layout) or {}).items():
        monkeypatch.setenv(name, value)
    return S3Store(state.bucket, endpoint=state.ports.s3_url, patience_s=5)


def test_a_pretrained_model_is_trained_and_registered(running: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    run_deployment(running, "post-training/smollm2")
    store = opened(running, monkeypatch)
    found = build_report(store, "latest", bucket=store.bucket)
    assert (found.summary.steps, found.summary.groups_failed) == (2, 0)
    assert found.held_out_success_base is not None
    assert found.held_out_success_final is not None
    run = RunStore(store, found.run)
    head, _ = run.read_head()
    assert head.state == "finished"
    assert head.version is not None
    manifest = run.read_manifest(head.version)
    assert manifest.tensors != run.read_manifest(run.steps()[0].version_in).tensors
    model = {info.key.rpartition("/")[2] for info in store.list(f"runs/{found.run}/model/")}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= model


def test_the_same_seed_and_synchronous_mode_repeat_tasks_and_rewards(
    running: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One thread each: `overlap-benchmark` pins engine and trainer to a processor."""
    path = tmp_path / "overlap.json"
    run_deployment(running, "overlap-benchmark/local", pairs=2, steps=3, skip_steps=1, json_path=str(path))
    found = json.loads(path.read_text())
    assert found["synchronous_runs_agree"] is True
    first, second = (pair["synchronous"] for pair in found["pairs"])
    assert first["run"] != second["run"]
    assert len(first["tasks"]) == 3 * 16
    assert len(set(first["reward_means"])) > 1
    assert all(pair["overlapped"]["lag_steps_mean"] > 0 for pair in found["pairs"])
    store = opened(running, monkeypatch)
    reports = [build_report(store, run, bucket=store.bucket) for run in list_runs(store)]
    assert len(reports) >= 4
    assert all(report.ledger is not None and not report.imbalances for report in reports), (
        "every token is accounted for"
    )
