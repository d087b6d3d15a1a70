"""When a part counts as working, and how waiting for it ends."""

import importlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import cast

import pytest

from driftline.errors import StackError
from infra import flow_server, health, web
from infra.layout import Layout, Ports, StackState
from infra.parts import POOLS, Part
from infra.supervisor import ProcessState, SupervisorClient, tail

STATE = StackState(Ports(4200, 5000, 8333, *range(21800, 21807)), "driftline")
RUNNING = ProcessState("RUNNING", 42, 1000.0, "pid 42")
WORKER = Part("worker-cpu-env", (), "work pool cpu-env", "worker-cpu-env", "worker", 1)


class Page(BaseHTTPRequestHandler):
    busy = 0
    """How many requests are still to be refused."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Page.busy -= 1
        self.send_response(503 if Page.busy >= 0 else 409 if self.path == "/refused" else 200)
        self.end_headers()
        self.wfile.write(b'{"answer": 1}')

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def server_part(url: str) -> Part:
    return Part("mlflow", (), url, url, "server", 1)


def test_a_page_answers_or_says_how_it_does_not(url: str) -> None:
    assert web.answers(f"{url}/health") == ""
    assert web.answers(f"{url}/other") == "answers 503"
    assert "does not answer" in web.answers("http://127.0.0.1:9/health", timeout_s=1)


def test_the_stack_is_never_reached_through_a_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as proxied:
        proxied.setenv("http_proxy", "http://127.0.0.1:9")
        proxied.delenv("no_proxy", raising=False)
        proxied.delenv("NO_PROXY", raising=False)
        importlib.reload(web)
    assert web.answers(f"{url}/health") == ""


def test_a_busy_server_is_asked_again_while_there_is_patience(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "RETRY_S", 0.01)
    Page.busy = 3
    assert web.send("POST", f"{url}/pools", {}, patience_s=10) == {"answer": 1}
    Page.busy = 3
    with pytest.raises(StackError, match="refused with 503"):
        web.send("POST", f"{url}/pools", {})
    Page.busy = 0
    with pytest.raises(StackError, match="refused with 409"):
        web.send("POST", f"{url}/refused", {}, patience_s=10)
    assert Page.busy == -1


def test_pools_are_created_once_and_changed_only_when_their_template_is(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = layout.repository / "infra" / "work-pools"
    directory.mkdir(parents=True)
    for pool in POOLS:
        (directory / f"{pool}.json").write_text('{"variables": {"properties": {"working_dir": {}}}}')
    here = {"variables": {"properties": {"working_dir": {"default": str(layout.repository)}}}}
    known = [
        {"name": "cpu-env", "base_job_template": here},
        {"name": "rollout-gpu", "base_job_template": {"variables": "of another checkout"}},
    ]
    sent: list[tuple[str, str, object]] = []

    def send(method: str, url: str, document: object, *, patience_s: float) -> object:
        if url.endswith("/filter"):
            return known
        sent.append((method, url.removeprefix(STATE.ports.prefect_api), document))
        return None

    monkeypatch.setattr(web, "send", send)
    flow_server.create_pools(layout, STATE)
    assert sent == [
        ("PATCH", "/work_pools/rollout-gpu", {"base_job_template": here}),
        ("POST", "/work_pools/", {"name": "train-gpu", "type": "process", "base_job_template": here}),
    ]


def test_a_server_is_healthy_when_its_page_answers(url: str) -> None:
    assert health.part_status(server_part(f"{url}/health"), RUNNING, {}).healthy
    ill = health.part_status(server_part(f"{url}/other"), RUNNING, {})
    assert (ill.healthy, ill.state, ill.detail, ill.pid) == (False, "running", "answers 503", 42)


@pytest.mark.parametrize(
    ("heard", "healthy"),
    [({}, False), ({"worker-cpu-env": 990.0}, False), ({"worker-cpu-env": 1001.0}, True), ({"other": 1001.0}, False)],
)
def test_a_worker_is_healthy_when_prefect_has_heard_from_this_very_start(
    heard: dict[str, float], healthy: bool
) -> None:
    assert health.part_status(WORKER, RUNNING, heard).healthy is healthy


@pytest.mark.parametrize(
    ("state", "shown"),
    [(None, "absent"), (ProcessState("BACKOFF", 0, 0.0, "Exited too quickly"), "backoff")],
)
def test_a_process_that_is_not_there_is_not_healthy(state: ProcessState | None, shown: str) -> None:
    row = health.part_status(WORKER, state, {"worker-cpu-env": 2000.0})
    assert (row.state, row.healthy, row.pid) == (shown, False, 0)


class Supervisor:
    """Stands in for the RPC client: one state for every part."""

    def __init__(self, state: ProcessState) -> None:
        self.state = state

    def processes(self) -> dict[str, ProcessState]:
        return {"mlflow": self.state}


def wait(layout: Layout, state: ProcessState, url: str, *, seconds: float) -> list[str]:
    said: list[str] = []
    client = cast("SupervisorClient", Supervisor(state))
    until = time.monotonic() + seconds
    health.wait_ready(client, layout, STATE, [server_part(url)], until, said.append)
    return said


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.of(Path("stack"), tmp_path)
    made.create()
    made.log("mlflow").write_text("first line\nImportError: the reason\n")
    return made


def test_waiting_ends_when_the_part_works(layout: Layout, url: str) -> None:
    (line,) = wait(layout, RUNNING, f"{url}/health", seconds=5)
    assert line.startswith("mlflow is ready")


def test_a_part_that_died_ends_the_wait_with_the_end_of_its_log(layout: Layout, url: str) -> None:
    died = ProcessState("BACKOFF", 0, 0.0, "Exited too quickly (process log may have details)")
    with pytest.raises(StackError) as caught:
        wait(layout, died, f"{url}/health", seconds=60)
    assert "mlflow died at start (Exited too quickly" in str(caught.value)
    assert str(caught.value).endswith("    ImportError: the reason")


def test_a_part_that_is_never_ready_ends_the_wait_at_the_deadline(layout: Layout, url: str) -> None:
    began = time.monotonic()
    with pytest.raises(StackError, match=r"not ready in time \(answers 503\): raise --start-deadline"):
        wait(layout, RUNNING, f"{url}/other", seconds=0.5)
    assert time.monotonic() - began < 10


def test_the_end_of_a_log_is_bounded_and_may_be_missing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == "    (its log is empty)"
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    assert tail(log, 2) == "    line 4998\n    line 4999"


def test_runs_that_were_cut_off_are_marked_as_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str, object]] = []

    def send(method: str, url: str, document: object = None, *, patience_s: float) -> object:
        sent.append((method, url.removeprefix(STATE.ports.prefect_api), document))
        return [{"id": "1", "name": "cell-0"}] if url.endswith("/flow_runs/filter") else None

    monkeypatch.setattr(web, "send", send)
    assert flow_server.settle_cut_off_runs(STATE) == ["cell-0"]
    method, path, document = sent[1]
    assert (method, path) == ("POST", "/flow_runs/1/set_state")
    assert isinstance(document, dict)
    assert document["state"]["type"] == "CRASHED"
    assert document["force"] is True


def test_deployments_are_registered_again_only_when_they_changed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = ("flows/rollout.py", "src/driftline/sections/rollout.py")
    for name in ("prefect.yaml", "src/driftline/params.py", *changing):
        path = layout.repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    codes = [1, 0, 0, 0]
    monkeypatch.setattr(flow_server, "run_prefect", lambda *arguments, **named: codes.pop(0))
    with pytest.raises(StackError, match="`prefect deploy --all` failed"):
        flow_server.deploy(layout, STATE)
    assert flow_server.deploy(layout, STATE) is not None
    assert flow_server.deploy(layout, STATE) is None
    for name in changing:
        (layout.repository / name).write_text("second")
        assert flow_server.deploy(layout, STATE) is not None
    assert codes == []
