"""The local stack under a real supervisord: first with quick stand-ins for its parts, then with the parts themselves.

The stand-ins make the ways in which a start fails quick to try; the last test brings everything up for real.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from driftline.errors import StackError
from driftline.params import Settings
from driftline.store.client import S3Store, probe_conditional_writes
from infra import buckets, flow_server, health, processes, stack, web
from infra.layout import Layout, StackState, credentials, read_state
from infra.parts import KEEPER, SERVERS, WORKERS, Part, parts
from infra.stack import StartOptions
from infra.supervisor import SupervisorClient

REPOSITORY = Path(__file__).resolve().parents[2]

SERVE = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""
WORK = "import time; time.sleep(600)"
KEEP = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
DIE = "import sys; print('the reason why'); sys.exit(3)"
HANG = "import time; time.sleep(600)"

SCHEDULED_WITHIN_S = 150.0
"""Prefect's scheduler looks for new deployments every few seconds, and at all of them each minute."""

Say = Callable[[str], None]


def silent(line: str) -> None:
    pass


def settings() -> Settings:
    return Settings(prefect_port=24200, mlflow_port=25000, s3_port=28333)  # pyright: ignore[reportCallIssue]


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    made = Layout.of(tmp_path / "stack", REPOSITORY)
    yield made
    processes.end_marked(made.root, terminate_s=1)


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Replaces every part by a small program; a test may change the program of one."""
    programs = dict.fromkeys(SERVERS, SERVE) | dict.fromkeys(WORKERS, WORK) | {KEEPER: KEEP}

    def stand_ins(layout: Layout, state: StackState) -> dict[str, Part]:
        ports = {"seaweedfs": state.ports.s3, "mlflow": state.ports.mlflow, "prefect": state.ports.prefect}
        return {
            name: Part(
                name,
                (
                    sys.executable, "-c", code_file(layout, name, programs[name]),
                    str(ports.get(name, layout.sign(name))),
                ),
                "", health_of(layout, ports, name),
                "server" if name in ports else "keeper" if name == KEEPER else "worker", 2,
            )
            for name in programs
        }  # fmt: skip

    def health_of(layout: Layout, ports: Mapping[str, int], name: str) -> str:
        if name in ports:
            return f"http://127.0.0.1:{ports[name]}/"
        return str(layout.sign(name)) if name == KEEPER else name

    def code_file(layout: Layout, name: str, code: str) -> str:
        path = layout.root / f"{name}.py"
        if not path.exists() or path.read_text() != code:  # a part may be reading it
            path.write_text(code)
        return f"exec(open({str(path)!r}).read())"

    monkeypatch.setattr(stack, "parts", stand_ins)
    monkeypatch.setattr(health, "parts", stand_ins)
    monkeypatch.setattr(stack, "ensure_bucket", lambda *arguments: None)
    monkeypatch.setattr(flow_server, "create_pools", lambda *arguments: None)
    monkeypatch.setattr(flow_server, "settle_cut_off_runs", lambda state: [])
    monkeypatch.setattr(flow_server, "online_workers", lambda state: dict.fromkeys(WORKERS, time.time()))
    return programs


def start(layout: Layout, *, deadline_s: float = 30, say: Say = silent) -> StackState:
    options = StartOptions(auto_ports=True, deploy=False, start_deadline_s=deadline_s)
    return stack.up(layout, settings(), options, say)


def all_healthy(layout: Layout, state: StackState) -> bool:
    return all(row.healthy for row in health.status(layout, state))


@pytest.mark.usefixtures("codes")
def test_a_second_start_reuses_what_runs_and_a_stop_leaves_nothing(layout: Layout) -> None:
    state = start(layout)
    before = {row.name: row.pid for row in health.status(layout, state)}
    assert all_healthy(layout, state)
    assert start(layout) == state
    assert {row.name: row.pid for row in health.status(layout, state)} == before
    assert stack.down(layout) == []
    assert processes.marked(layout.root) == []
    assert {row.state for row in health.status(layout, state)} == {"absent"}


@pytest.mark.usefixtures("codes")
def test_a_part_that_was_stopped_is_started_again_and_the_others_stay(layout: Layout) -> None:
    state = start(layout)
    before = {row.name: row.pid for row in health.status(layout, state)}
    SupervisorClient(layout).stop(["mlflow"], deadline_s=10)
    assert not all_healthy(layout, state)
    start(layout)
    after = {row.name: row.pid for row in health.status(layout, state)}
    assert {name for name in before if before[name] != after[name]} == {"mlflow"}


@pytest.mark.parametrize("part", ["mlflow", "seaweedfs", "worker-train-gpu"])
def test_a_part_that_dies_at_start_ends_the_start_with_its_log(
    layout: Layout, codes: dict[str, str], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes[part] = DIE
    monkeypatch.setattr(flow_server, "online_workers", lambda state: {})
    with pytest.raises(StackError) as caught:
        start(layout)
    assert f"{part} died at start" in str(caught.value)
    assert "the reason why" in str(caught.value)
    assert processes.marked(layout.root) == []


def test_a_part_that_is_never_ready_ends_the_start_at_the_deadline(layout: Layout, codes: dict[str, str]) -> None:
    codes["mlflow"] = HANG
    began = time.monotonic()
    with pytest.raises(StackError, match=r"mlflow is not ready in time .*raise --start-deadline"):
        start(layout, deadline_s=3)
    assert time.monotonic() - began < 60
    assert processes.marked(layout.root) == []


@pytest.mark.usefixtures("codes")
def test_a_taken_port_is_refused_before_anything_starts(layout: Layout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = StartOptions(mlflow_port=server.getsockname()[1], deploy=False)
        with pytest.raises(StackError, match="--mlflow-port"):
            stack.up(layout, settings(), options, silent)
    assert processes.marked(layout.root) == []
    assert not layout.log("supervisord").exists()


def test_an_interrupted_start_leaves_nothing(layout: Layout, codes: dict[str, str]) -> None:
    codes["mlflow"] = HANG

    def interrupt(line: str) -> None:
        if line.startswith("seaweedfs is ready"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(layout, say=interrupt)
    assert processes.marked(layout.root) == []


def test_a_stack_that_another_version_started_is_not_taken_for_this_one(
    layout: Layout, codes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = dict(codes)
    codes.pop(KEEPER)
    monkeypatch.setattr(stack, "KEEPER", "mlflow")
    state = start(layout)
    codes |= newer
    monkeypatch.setattr(stack, "KEEPER", KEEPER)
    with pytest.raises(StackError, match=r"has no flow-keeper: .*run `driftline down`"):
        start(layout)
    codes.pop(KEEPER)
    assert all_healthy(layout, state), "and it goes on"


@pytest.mark.usefixtures("codes")
def test_a_killed_supervisor_and_its_stale_files_do_not_hinder_the_next_start(layout: Layout) -> None:
    state = start(layout)
    kill_supervisor(layout)
    assert layout.supervisor_socket.exists()
    said: list[str] = []
    assert start(layout, say=said.append) == state
    assert all_healthy(layout, state)
    assert any("earlier stack" in line for line in said)


@pytest.mark.usefixtures("codes")
def test_a_supervisor_that_does_not_answer_is_ended_with_all_the_rest(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.supervisor.ANSWER_S", 1.0)
    start(layout)
    (manager,) = processes.supervisors(layout.root, layout.configuration)
    manager.suspend()
    began = time.monotonic()
    ended = stack.down(layout)
    assert time.monotonic() - began < 60
    assert {process.pid: process.killed for process in ended}[manager.pid] is False
    assert processes.marked(layout.root) == []


@pytest.mark.usefixtures("codes")
def test_of_two_starts_at_once_one_is_refused(layout: Layout) -> None:
    seen: list[str] = []

    def second(line: str) -> None:
        if not seen:
            try:
                start(layout)
            except StackError as error:
                seen.append(str(error))

    start(layout, say=second)
    assert len(seen) == 1
    assert "another `driftline up` or `down` is at work" in seen[0]


def test_flow_runs_are_ended_before_the_servers_they_need(layout: Layout, codes: dict[str, str]) -> None:
    """A worker's flow run is in its own session, so that stopping the worker does not reach it."""
    codes["worker-train-gpu"] = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {WORK!r}, 'the-flow-run'], start_new_session=True); time.sleep(600)"
    )
    state = start(layout)
    flow_run = wait_for_process(layout, "the-flow-run")
    servers = {row.pid for row in health.status(layout, state) if row.name in SERVERS}
    alive_at_its_end: list[set[int]] = []

    def watch() -> None:
        until = time.monotonic() + 60
        while processes.wait_gone(flow_run, 0) is False and time.monotonic() < until:
            time.sleep(0.001)
        alive_at_its_end.append({pid for pid in servers if psutil.pid_exists(pid)})

    watcher = threading.Thread(target=watch)
    watcher.start()
    ended = stack.down(layout)
    watcher.join()
    assert [process.pid for process in ended] == [flow_run.pid]
    assert alive_at_its_end == [servers]
    assert processes.marked(layout.root) == []


def wait_for_process(layout: Layout, argument: str) -> psutil.Process:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for process in processes.marked(layout.root):
            if argument in process.cmdline():
                return process
        time.sleep(0.1)
    raise AssertionError(f"no process with {argument}")


def kill_supervisor(layout: Layout) -> None:
    (manager,) = processes.supervisors(layout.root, layout.configuration)
    os.kill(manager.pid, signal.SIGKILL)
    assert processes.wait_gone(manager, 10)


@pytest.mark.timeout(600)
def test_the_whole_stack_works_and_nothing_is_left_of_it_after_its_supervisor_was_killed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = start(layout, deadline_s=400)
    rows = health.status(layout, state)
    assert {row.name for row in rows} == {*SERVERS, *WORKERS, KEEPER}
    assert all(row.healthy and row.pid for row in rows), rows
    assert_only_loopback(layout)
    assert_store_works(layout, state, monkeypatch)
    assert_schedules_give_flow_runs(state)
    assert_no_secret_in_logs(layout)
    assert read_state(layout) == state

    kill_supervisor(layout)
    stack.down(layout)
    assert processes.marked(layout.root) == []
    assert not layout.supervisor_socket.exists()
    for port in (*state.ports.public.values(), *state.ports.internal.values()):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def assert_only_loopback(layout: Layout) -> None:
    pids = {process.pid for process in processes.marked(layout.root)}
    listening = [
        connection
        for connection in psutil.net_connections("inet")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= len(parts(layout, _state(layout)))
    assert {getattr(connection.laddr, "ip", "") for connection in listening} == {"127.0.0.1"}


def assert_store_works(layout: Layout, state: StackState, monkeypatch: pytest.MonkeyPatch) -> None:
    variables: Mapping[str, str] = stack.connection(layout) or {}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, variables[name])
    probe_conditional_writes(S3Store(state.bucket, endpoint=state.ports.s3_url, patience_s=5))
    buckets.ensure_bucket(state, credentials(layout), time.monotonic())


def assert_schedules_give_flow_runs(state: StackState) -> None:
    """The server's scheduler works with what the lock installs: with SQLAlchemy 2.1 it raised each minute."""
    api = state.ports.prefect_api
    flow = web.send("POST", f"{api}/flows/", {"name": "refresh"}, patience_s=60)["id"]
    nightly = {"schedule": {"cron": "0 3 * * *"}, "active": True}
    asked = {"name": "nightly", "flow_id": flow, "schedules": [nightly]}
    deployment = web.send("POST", f"{api}/deployments/", asked, patience_s=60)["id"]
    query = {"deployments": {"id": {"any_": [deployment]}}, "limit": 5}
    deadline = time.monotonic() + SCHEDULED_WITHIN_S
    while not (found := web.send("POST", f"{api}/flow_runs/filter", query, patience_s=60)):
        assert time.monotonic() < deadline, "the deployment has no flow run to come"
        time.sleep(1)
    assert {run["auto_scheduled"] for run in found} == {True}


def assert_no_secret_in_logs(layout: Layout) -> None:
    secret = credentials(layout).secret_key.encode()
    assert not [log.name for log in layout.logs.iterdir() if secret in log.read_bytes()]
    assert secret not in layout.configuration.read_bytes()


def _state(layout: Layout) -> StackState:
    state = read_state(layout)
    assert state is not None
    return state
