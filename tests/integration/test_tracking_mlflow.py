"""Tracking against a real MLflow server, read back as its page reads it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from driftline.environment import Message
from driftline.errors import ConfigurationError, TrackingUnavailable
from driftline.records import EpisodeSeconds, Segment, Trajectory
from driftline.store import keys
from driftline.store.files import upload_directory
from driftline.tracking import metrics, mlflow_run
from driftline.tracking.client import connect
from driftline.tracking.sink import MetricsSink
from driftline.tracking.traces import episode_trace
from infra.environment import connection
from infra.layout import Credentials, Layout, Ports, StackState
from tests.support.mlflow_server import free_port
from tests.support.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

PARAMETERS = {"seed": 3, "training": {"learning_rate": 3e-4, "dtype": "float32"}, "engine": {"cpus": [0, 1]}}
TAGS = {"driftline.code_version": "0.1.0+abc", "driftline.task_set": "tasks-1"}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server(mlflow_server: str) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield mlflow_server


def open_run(server: str, run: str, experiment: str = "tests") -> str:
    return mlflow_run.start_run(server, experiment, run, parameters=PARAMETERS, tags=TAGS)


def history(server: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in connect(server).get_metric_history(run_id, name))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_carries_parameters_tags_and_its_parameters_as_a_file(server: str, tmp_path: Path) -> None:
    run_id = open_run(server, "parameters")
    client = connect(server)
    found = client.get_run(run_id)
    assert found.info.run_name == "parameters"
    assert found.data.params == {
        "seed": "3",
        "training.learning_rate": "0.0003",
        "training.dtype": "float32",
        "engine.cpus": "[0, 1]",
    }
    assert found.data.tags["driftline.run"] == "parameters"
    assert found.data.tags["driftline.task_set"] == "tasks-1"
    path = client.download_artifacts(run_id, "parameters.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == PARAMETERS


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(server: str) -> None:
    run_id = open_run(server, "resumed")
    mlflow_run.end_run(server, run_id, "failed")
    assert connect(server).get_run(run_id).info.status == "FAILED"
    again = mlflow_run.start_run(
        server, "tests", "resumed", parameters=PARAMETERS, tags={"driftline.code_version": "2"}
    )
    assert again == run_id
    found = connect(server).get_run(run_id)
    assert (found.info.status, found.data.tags["driftline.code_version"]) == ("RUNNING", "2")
    assert open_run(server, "another") != run_id


@pytest.mark.parametrize(
    ("state", "status"), [("finished", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED")]
)
def test_a_run_ends_with_the_status_of_its_state(server: str, state: Any, status: str) -> None:
    run_id = open_run(server, f"ends-{state}")
    mlflow_run.end_run(server, run_id, state)
    assert connect(server).get_run(run_id).info.status == status


def test_two_processes_log_into_one_run(server: str) -> None:
    run_id = open_run(server, "two-sinks")
    trainer, cell = MetricsSink(server, run_id), MetricsSink(server, run_id)
    for step in range(1, 1301):
        trainer.log({metrics.LOSS: step / 2}, step=step)
    cell.log({metrics.TOKENS_PER_SECOND: 900.0}, step=1)
    trainer.log({metrics.GRADIENT_NORM: float("nan")}, step=1)
    assert trainer.close(PATIENCE_S)
    assert cell.close(PATIENCE_S)
    assert history(server, run_id, metrics.LOSS) == [(step, step / 2) for step in range(1, 1301)]
    assert history(server, run_id, metrics.TOKENS_PER_SECOND) == [(1, 900.0)]
    assert len(history(server, run_id, metrics.GRADIENT_NORM)) == 1
    assert connect(server).get_run(run_id).info.status == "RUNNING"


@contextlib.contextmanager
def forwarding(port: int, address: str) -> Iterator[None]:
    """Connections to `port` reach the server at `address`."""
    target = urlsplit(address)
    stopped = threading.Event()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        opened: list[socket.socket] = []
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                near, _ = listener.accept()
                far = socket.create_connection((target.hostname, target.port))
                opened += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()
        for each in opened:
            each.close()

    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def test_an_outage_of_mlflow_loses_no_metric(server: str, caplog: pytest.LogCaptureFixture) -> None:
    run_id = open_run(server, "outage")
    port = free_port()
    subject = MetricsSink(f"http://127.0.0.1:{port}", run_id, interval_s=0.1)
    subject.log({metrics.LOSS: 1.0}, step=1)
    wait_until(lambda: "again in" in caplog.text)
    subject.log({metrics.LOSS: 2.0}, step=2)
    assert subject.pending == 2
    with forwarding(port, server):
        wait_until(lambda: subject.pending == 0)
    subject.log({metrics.LOSS: 3.0}, step=3)
    with forwarding(port, server):
        assert subject.close(PATIENCE_S)
    assert history(server, run_id, metrics.LOSS) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_sending_points_again_changes_nothing(server: str) -> None:
    run_id = open_run(server, "repeated")
    for _ in range(2):
        subject = MetricsSink(server, run_id, clock=lambda: 1.8e9)
        subject.log({metrics.LOSS: 1.0}, step=1)
        assert subject.close(PATIENCE_S)
    assert history(server, run_id, metrics.LOSS) == [(1, 1.0)]


def test_a_run_that_mlflow_does_not_know_is_given_up_not_retried(server: str) -> None:
    subject = MetricsSink(server, "0" * 32)
    subject.log({metrics.LOSS: 1.0}, step=1)
    assert not subject.close(PATIENCE_S)
    assert (subject.pending, subject.lost) == (0, 1)


def test_artifacts_are_stored_and_replaced(server: str, tmp_path: Path) -> None:
    run_id = open_run(server, "artifacts")
    mlflow_run.log_artifacts(server, run_id, {"report.json": "old", "deep/timeline.png": b"\x89PNG"})
    mlflow_run.log_artifacts(server, run_id, {"report.json": "new"})
    folder = Path(connect(server).download_artifacts(run_id, "", str(tmp_path)))
    assert (folder / "report.json").read_text() == "new"
    assert (folder / "deep" / "timeline.png").read_bytes() == b"\x89PNG"


def test_a_policy_is_registered_once_by_its_address_in_s3(server: str) -> None:
    source = "s3://driftline/runs/first/model/"
    first = open_run(server, "first")

    def register(run_id: str, address: str) -> int:
        return mlflow_run.register_policy(
            server, "policy", source=address, run_id=run_id, description="# Card", tags={"success": "0.9"}
        )

    assert [register(first, source), register(first, source)] == [1, 1]
    assert register(open_run(server, "second"), "s3://driftline/runs/second/model/") == 2
    version = connect(server).get_model_version("policy", "1")
    assert (version.source, version.run_id, version.description) == (source, first, "# Card")
    assert version.tags == {"success": "0.9"}


def test_a_registered_policy_comes_down_as_the_page_says(server: str, seaweed: Seaweed, tmp_path: Path) -> None:
    """README: `mlflow artifacts download -u models:/NAME/VERSION`, with the variables of `driftline env`."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text("{}")
    upload_directory(seaweed.store(), keys.final_model_prefix("down"), tmp_path / "made")
    source = f"s3://{BUCKET}/{keys.final_model_prefix('down')}"
    run_id = open_run(server, "down")
    version = mlflow_run.register_policy(server, "down", source=source, run_id=run_id, description="", tags={})
    ports = Ports(4200, urlsplit(server).port or 0, urlsplit(seaweed.endpoint).port or 0, *range(21800, 21807))
    variables = connection(
        Layout.of(tmp_path, tmp_path), StackState(ports, BUCKET), Credentials(ACCESS_KEY, SECRET_KEY)
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MLFLOW_"))}
    for number, address in enumerate((f"models:/down/{version}", source.removesuffix("/"))):
        download = ["artifacts", "download", "-u", address, "-d", str(tmp_path / str(number))]
        subprocess.run([sys.executable, "-m", "mlflow", *download], env=kept | variables, check=True, timeout=120)
        assert [path.read_text() for path in (tmp_path / str(number)).rglob("config.json")] == ["{}"]


def test_an_episode_is_a_trace_of_the_run_with_its_turns(server: str) -> None:
    run_id = open_run(server, "traces")
    episode = Trajectory(
        run="traces", group=7, member=2, attempt=0, cell="c", task_id="task", task_set="tasks-1",
        environment="pointer_chase/v1", token_ids=(1, 2, 3, 4, 5), loss_mask=(False, True, True, False, True),
        logprobs=(0.0, -0.25, -0.75, 0.0, -2.0), segments=(Segment(0, 4), Segment(4, 5)), turns=2, reward=1.0,
        success=True, status="ok", reason="", seconds=EpisodeSeconds(), started_unix=1.8e9, finished_unix=1.8e9 + 4,
        request_seconds=((1.8e9, 1.8e9 + 1), (1.8e9 + 1, 1.8e9 + 2), (1.8e9 + 2, 1.8e9 + 4)),
    )  # fmt: skip
    messages = [
        Message("user", "find"),
        Message("assistant", ">ab"),
        Message("tool", "x"),
        Message("assistant", "=x"),
    ]
    subject = MetricsSink(server, run_id)
    subject.log_episode(episode_trace(episode, messages))
    assert subject.close(PATIENCE_S)

    client = connect(server)
    experiment = client.get_run(run_id).info.experiment_id
    (trace,) = client.search_traces(locations=[experiment], run_id=run_id)
    assert trace.info.trace_metadata["mlflow.sourceRun"] == run_id
    assert (trace.info.state.value, trace.info.request_time, trace.info.execution_duration) == (
        "OK",
        1_800_000_000_000,
        4000,
    )
    assert (trace.info.tags["driftline.policy_version"], trace.info.tags["driftline.reward"]) == ("5", "1.0")
    root, first, tool, second = sorted(trace.data.spans, key=lambda span: (span.start_time_ns, span.parent_id or ""))
    assert [span.name for span in (root, first, tool, second)] == ["group 7 member 2", "turn 0", "tool 0", "turn 1"]
    assert {span.parent_id for span in (first, tool, second)} == {root.span_id}
    assert root.outputs == {"reward": 1.0, "success": True, "status": "ok"}
    assert root.attributes["policy_versions"] == [4, 5]
    assert root.attributes["mean_logprob_nats"] == -1.0
    assert (first.span_type, first.outputs, first.attributes["mean_logprob_nats"]) == ("LLM", ">ab", -0.5)
    assert (tool.span_type, tool.inputs, tool.outputs) == ("TOOL", ">ab", [{"role": "tool", "content": "x"}])
    assert (second.start_time_ns, second.end_time_ns) == (1_800_000_002_000_000_000, 1_800_000_004_000_000_000)


def test_the_page_of_a_run_opens(server: str) -> None:
    run_id = open_run(server, "page")
    page = mlflow_run.run_page(server, run_id)
    experiment = connect(server).get_run(run_id).info.experiment_id
    assert page == f"{server}/#/experiments/{experiment}/runs/{run_id}"
    assert page is not None
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert b"<html" in answer.read()
    assert mlflow_run.run_page("sqlite:///nothing.db", run_id) is None


def test_a_deleted_experiment_is_refused_with_the_remedy(server: str) -> None:
    open_run(server, "gone", experiment="deleted")
    client = connect(server)
    found = client.get_experiment_by_name("deleted")
    assert found is not None
    client.delete_experiment(found.experiment_id)
    with pytest.raises(ConfigurationError, match=r"experiment: 'deleted' was deleted in MLflow: restore it"):
        open_run(server, "gone-too", experiment="deleted")


def test_mlflow_that_is_down_is_an_outage_and_says_so_soon() -> None:
    before = time.monotonic()
    with pytest.raises(TrackingUnavailable, match=r"MLflow at http://127.0.0.1:\d+ does not answer"):
        open_run(f"http://127.0.0.1:{free_port()}", "down")
    assert time.monotonic() - before < 30
