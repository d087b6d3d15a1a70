"""What becomes of flow runs whose process, or whose worker, was killed; and how their runs are taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from driftline.params import RunParameters
from driftline.records import Head, ModelSource, RunDescription, RunState
from driftline.store import client, keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from infra import flow_keeper, processes, resumptions
from infra.flow_keeper import FlowKeeper, Sighting, verdict
from infra.flow_server import CUT_OFF
from infra.layout import Layout, Ports, StackState
from infra.resumptions import Resumer, to_resume
from tests.support.processes import alive

NOW = datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC)
RUN = "20260301-040000-aaaaaa"
WORK = "import time; time.sleep(60)"


def row(
    number: str = "a", state: str = "CRASHED", *, minutes: int = -5, message: str = "", **other: Any
) -> dict[str, Any]:
    """A post-training flow run as the API shows it."""
    scheduled = NOW + timedelta(minutes=minutes, seconds=-6)
    return {
        "id": f"{number * 6}00-0000-0000-0000-000000000000",
        "name": f"run-{number}",
        "deployment_id": "d1",
        "state_type": state,
        "state": {"timestamp": NOW.isoformat().replace("+00:00", "Z"), "message": message},
        "expected_start_time": scheduled.isoformat().replace("+00:00", "Z"),
        "parameters": {"params": {"seed": 1}},
    } | other


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Sighting("RUNNING", 100.0, 0.0, False), "leave"),
        (Sighting("RUNNING", 100.0, 0.0, True), "leave"),
        (Sighting("RUNNING", 100.0, 3.9, False), "leave"),
        (Sighting("RUNNING", 100.0, 4.1, False), "crashed"),
        (Sighting("PENDING", 59.0, 59.0, False), "leave"),
        (Sighting("PENDING", 61.0, 61.0, False), "crashed"),
        (Sighting("CANCELLING", 5.0, 0.0, False), "leave"),
        (Sighting("CANCELLING", 5.0, 0.0, True), "end"),
        (Sighting("CANCELLING", 19.0, 0.0, False), "leave"),
        (Sighting("CANCELLING", 21.0, 0.0, False), "end"),
        (Sighting("CANCELLING", 21.0, 1.0, False), "leave"),
        (Sighting("CANCELLING", 5.0, 4.1, False), "cancelled"),
    ],
)
def test_the_verdict_on_a_flow_run(seen: Sighting, expected: str):
    assert verdict(seen) == expected


class Prefect:
    """Answers the few requests of the API that the keeper makes."""

    def __init__(self) -> None:
        self.unfinished: list[dict[str, Any]] = []
        self.parents: list[dict[str, Any]] = []
        self.settled: list[tuple[str, str]] = []
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.states = ["SCHEDULED", "RUNNING", "CRASHED"]

    def answer(self, path: str, document: dict[str, Any]) -> Any:
        if path.endswith("/flow_runs/filter"):
            return self.parents if "flows" in document else self.unfinished
        if path.endswith("/set_state"):
            self.settled.append((path.split("/")[-2], document["state"]["type"]))
            self.unfinished = [found for found in self.unfinished if found["id"] not in path]
        elif path.endswith("/create_flow_run"):
            self.created.append((path.split("/")[-2], document))
        return {}


@pytest.fixture
def prefect() -> Iterator[tuple[Prefect, StackState]]:
    script = Prefect()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send([{"type": kind} for kind in script.states])

        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(script.answer(self.path, document))

        def _send(self, answer: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield script, StackState(Ports(server.server_port, 5000, 8333, *range(21800, 21807)), "driftline")
        server.shutdown()
        thread.join()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(client, "open_store", lambda settings, *, patience_s: made)
    monkeypatch.setattr(resumptions.time, "time", lambda: NOW.timestamp() + 10)
    return made


def begin(store: MemoryStore, state: RunState = "running", *, limit: int = 2) -> RunStore:
    """A run under way, with its limit."""
    run_store = RunStore(store, RUN)
    parameters = RunParameters.model_validate({"seed": 1, "limits": {"resumptions": limit}}).model_dump(mode="json")
    model = ModelSource("0", "models/0/", (), False)
    run_store.create(RunDescription(RUN, 0.0, parameters, "test", model, "v", "h", None))
    run_store.create_head(Head(3, 7, None, None, 0, (), 0, ((0, "v"),), state=state))
    return run_store


def look(state: StackState) -> None:
    """What a keeper that has just started does."""
    Resumer(state.ports.prefect_api).look()


def test_a_crashed_run_is_taken_up_again_once(prefect: tuple[Prefect, StackState], store: MemoryStore):
    script, state = prefect
    begin(store)
    script.parents = [row("a")]
    resumer = Resumer(state.ports.prefect_api)
    resumer.look()
    resumer.look()
    assert [deployment for deployment, _ in script.created] == ["d1"]
    made = script.created[0][1]
    assert made["parameters"] == {"params": {"seed": 1}, "run": RUN}
    assert [info.key for info in store.list(keys.resumptions_prefix(RUN))] == [keys.resumption(RUN, 1)]

    look(state)
    assert {document["idempotency_key"] for _, document in script.created} == {f"resume-{RUN}-1"}, "Prefect makes one"


def test_each_crash_is_one_resumption_and_they_are_bounded(prefect: tuple[Prefect, StackState], store: MemoryStore):
    script, state = prefect
    run_store = begin(store, limit=2)
    script.parents = [row("a")]
    for number, letter in enumerate("bcd", start=1):
        look(state)
        assert len(script.created) == min(number, 2)
        script.parents.append(row(letter, minutes=number - 5, parameters={"run": RUN}))
    head, _ = run_store.read_head()
    assert (head.state, head.epoch) == ("failed", 4), "the trainer that may be left is fenced off"
    assert "limits.resumptions allows 2 resumptions" in head.reason


def test_the_parameters_of_another_version_do_not_stop_the_keeper(
    prefect: tuple[Prefect, StackState], store: MemoryStore
):
    script, state = prefect
    begin(store, limit=0)
    described = json.loads(store.get(keys.description(RUN)).body)
    described["parameters"] = {"a_section_of_tomorrow": {}, "limits": {"resumptions": 1}}
    store.put(keys.description(RUN), json.dumps(described).encode())
    script.parents = [row("a")]
    look(state)
    assert len(script.created) == 1


def test_a_run_that_crashed_before_it_had_begun_begins_under_its_name(
    prefect: tuple[Prefect, StackState], store: MemoryStore
):
    script, state = prefect
    script.parents = [row("a")]
    look(state)
    assert script.created[0][1]["parameters"]["run"] == RUN


@pytest.mark.parametrize("state_of_run", ["failed", "cancelled"])
def test_a_run_that_has_ended_stays_ended(
    prefect: tuple[Prefect, StackState], store: MemoryStore, state_of_run: RunState
):
    script, state = prefect
    begin(store, state_of_run)
    script.parents = [row("a")]
    look(state)
    assert script.created == []


def test_a_run_that_was_being_cancelled_is_not_taken_up_again(
    prefect: tuple[Prefect, StackState], store: MemoryStore
):
    script, state = prefect
    begin(store)
    script.parents = [row("a")]
    script.states = ["RUNNING", "CANCELLING", "CRASHED"]
    look(state)
    assert script.created == []
    assert list(store.list(keys.resumptions_prefix(RUN))) == []


def test_a_run_whose_training_is_over_is_taken_to_its_end(prefect: tuple[Prefect, StackState], store: MemoryStore):
    script, state = prefect
    begin(store, "finished")
    script.parents = [row("a")]
    look(state)
    assert len(script.created) == 1


def test_another_program_that_claims_the_resumption_first_wins(
    prefect: tuple[Prefect, StackState], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    script, state = prefect
    begin(store)
    script.parents = [row("a")]
    monkeypatch.setattr(store, "list", lambda prefix, after="": iter(()))
    store.create(keys.resumption(RUN, 1), b"another's")
    look(state)
    assert script.created == []


def test_only_the_last_flow_run_of_a_run_counts_and_only_a_recent_crash():
    now = NOW.timestamp()
    again: dict[str, Any] = {"parameters": {"run": RUN}}
    assert to_resume([row("a"), row("b", "RUNNING", minutes=-1, **again)], now) == []
    assert to_resume([row("a"), row("b", "COMPLETED", minutes=-1, **again)], now) == []
    assert [found["name"] for found in to_resume([row("b", minutes=-1, **again), row("a")], now)] == ["run-b"]
    assert to_resume([row("a")], now + 3600) == []
    assert to_resume([row("a", message=CUT_OFF)], now) == [], "it was stopped with its stack"
    assert to_resume([row("a", deployment_id=None)], now) == []
    assert to_resume([row("a", "FAILED")], now) == []


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    made = Layout.of(tmp_path, tmp_path)
    yield made
    processes.end_marked(made.root, terminate_s=0.5)


def flow_run_process(layout: Layout, flow_run: str) -> tuple[psutil.Popen, psutil.Process]:
    """A worker, and the process of a flow run that it has started in a session of its own."""
    mark = {processes.STACK_VARIABLE: str(layout.root)}
    carried = mark | {"PREFECT__FLOW_RUN_ID": flow_run}
    inner = f"subprocess.Popen([sys.executable, '-c', {WORK!r}], env={carried!r}, start_new_session=True)"
    started = psutil.Popen([sys.executable, "-c", f"import subprocess, sys; {inner}; {WORK}"], env=mark)
    until = time.monotonic() + 20
    while not started.children() and time.monotonic() < until:
        time.sleep(0.02)
    return started, started.children()[0]


def unfinished(flow_run: str, state: str) -> dict[str, Any]:
    return {"id": flow_run, "name": "n", "state_type": state, "state": {"timestamp": datetime.now(UTC).isoformat()}}


def test_a_flow_run_that_has_lost_its_process_is_marked_and_one_that_goes_on_is_left(
    prefect: tuple[Prefect, StackState], layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flow_keeper, "LOST_S", 0.05)
    script, state = prefect
    worker, _ = flow_run_process(layout, "lives")
    script.unfinished = [
        unfinished("lives", "RUNNING"),
        unfinished("lost", "RUNNING"),
        unfinished("gone", "CANCELLING"),
    ]
    keeper = FlowKeeper(layout, state)
    keeper.look()
    assert script.settled == [], "one look may fall between two processes"
    time.sleep(0.1)
    keeper.look()
    assert script.settled == [("lost", "CRASHED"), ("gone", "CANCELLED")]
    worker.kill()
    worker.wait()
    keeper.look()
    assert [found["id"] for found in script.unfinished] == ["lives"], "an orphan goes on"


def test_a_cancelled_flow_run_is_ended_for_a_worker_that_was_killed_and_not_for_one_that_lives(
    prefect: tuple[Prefect, StackState], layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flow_keeper, "LOST_S", 0.05)
    script, state = prefect
    worker, flow_run = flow_run_process(layout, "orphan")
    script.unfinished = [unfinished("orphan", "CANCELLING")]
    keeper = FlowKeeper(layout, state)
    keeper.look()
    assert alive([flow_run.pid]) == [flow_run.pid], "its worker sees to it"
    worker.kill()
    worker.wait()
    keeper.look()
    assert alive([flow_run.pid]) == []
    time.sleep(0.1)
    keeper.look()
    assert script.settled == [("orphan", "CANCELLED")]


def test_what_an_earlier_start_of_a_server_has_left_is_ended_before_the_next(layout: Layout):
    """MLflow's first process may be killed while uvicorn below it goes on, and holds the port."""
    mark = {processes.STACK_VARIABLE: str(layout.root)}
    left = [
        subprocess.Popen([sys.executable, "-c", WORK], env={**mark, "DRIFTLINE_PART": part})
        for part in ("mlflow", "s3")
    ]
    environment = {**mark, "DRIFTLINE_WORK_DIR": str(layout.root), "PYTHONPATH": ":".join(sys.path)}
    show = "import os; print(os.environ['DRIFTLINE_PART'])"
    done = subprocess.run(
        [sys.executable, "-m", "infra.launch", "mlflow", sys.executable, "-c", show],
        env=environment, cwd=Path(__file__).resolve().parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "mlflow\n"
    assert left[0].wait(5) == -15
    assert left[1].poll() is None
    left[1].kill()
    left[1].wait()
