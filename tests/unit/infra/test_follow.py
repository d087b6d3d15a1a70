"""Following a flow run: what is told, once each, and how it ends. Against a server with the answers of Prefect's."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from driftline.errors import StackError
from infra import follow, web
from infra.layout import Ports, StackState


@dataclass
class Server:
    """Answers what a run looks like at each look, the last one for ever."""

    state: StackState
    looks: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    """State type, and names of the tasks that have begun."""
    made: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refusals: int = 0
    """Creations that are answered 503."""
    silences: int = 0
    """Questions about the run's tasks that are answered 503."""
    breaks: int = 0
    """Answers about the run that break off in the middle."""
    children: list[str] = field(default_factory=list[str])
    """Tasks that stand for flow runs."""
    _look: int = -1

    def answer(self, method: str, path: str, document: Any) -> Any:
        """The answer to a request; None refuses it as busy."""
        if path == "/api/deployments/name/post-training/local":
            return {"id": "d1"}
        if path == "/api/deployments/filter":
            assert document["flows"] == {"name": {"any_": ["post-training"]}}
            return [{"name": "local", "parameters": None}, {"name": "gpu", "parameters": {"params": {"seed": 1}}}]
        if path == "/api/deployments/d1/create_flow_run":
            self.made.append(document)
            self.refusals -= 1
            return None if self.refusals >= 0 else MADE
        if path == "/api/flow_runs/r1b2c3d4e5":
            self._look = min(self._look + 1, len(self.looks) - 1)
            kind = self.looks[self._look][0]
            state = {"message": "out of road"}
            return {
                "name": "brave-otter",
                "state_type": kind,
                "state_name": NAMES.get(kind, kind.title()),
                "state": state,
            }
        if path == "/api/flow_runs/filter":
            assert document["flow_runs"] == {"parent_flow_run_id": {"any_": ["r1b2c3d4e5"]}}
            return [{"id": f"f{one}", "parent_task_run_id": one, **begun(f"cell of {one}")} for one in self.children]
        assert (method, path) == ("POST", "/api/task_runs/filter")
        assert document["task_runs"] == {"flow_run_id": {"any_": ["r1b2c3d4e5"]}}
        if self.silences > 0:
            self.silences -= 1
            return None
        names = [*self.looks[self._look][1], *self.children]
        return [
            *({"id": name, **begun(name)} for name in names),
            {"id": "x", "name": "not begun", "start_time": None},
        ]


NAMES = {"SCHEDULED": "AwaitingConcurrencySlot"}
MADE = {
    "id": "r1b2c3d4e5",
    "name": "brave-otter",
    "expected_start_time": "2026-01-01T02:03:04.500000Z",
    "parameters": {},
}


def begun(name: str) -> dict[str, Any]:
    return {"name": name, "start_time": "2026-01-01T00:00:00Z"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = json.dumps(found.answer(self.command, self.path, json.loads(body) if body else None)).encode()
            self.send_response(503 if answer == b"null" else 200)
            if self.path == "/api/flow_runs/r1b2c3d4e5" and found.breaks > 0:
                found.breaks -= 1
                self.send_header("Content-Length", str(len(answer) + 1))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _respond

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setattr(follow, "LOOK_S", 0.01)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Server(StackState(Ports(serving.server_address[1], 5000, 8333, *range(21800, 21807)), "driftline"))
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    yield found
    serving.shutdown()
    serving.server_close()
    thread.join()


def _run(server: Server, deadline_s: float = 30.0, progress: Iterator[str | None] | None = None) -> list[str]:
    told: list[str] = []
    follow.follow(
        server.state, follow.create(server.state, "post-training/local"), told.append, deadline_s=deadline_s,
        progress=lambda: next(progress, None) if progress is not None else None,
    )  # fmt: skip
    return [line[6:].strip() for line in told]


def test_each_task_and_each_progress_is_told_once_in_order(server: Server) -> None:
    server.looks = [
        ("SCHEDULED", []),
        ("RUNNING", ["base policy"]),
        ("RUNNING", ["base policy", "train"]),
        ("RUNNING", ["base policy", "train"]),
        ("COMPLETED", ["base policy", "train", "report"]),
    ]
    told = _run(server, progress=iter([None, None, "step 1 of 2", "step 1 of 2", "step 2 of 2"]))
    assert told == [
        follow.WAITS["AwaitingConcurrencySlot"],
        "base policy",
        "train",
        "step 1 of 2",
        "report",
        "step 2 of 2",
    ]


def test_what_is_made_has_the_parameters_and_the_name_of_its_run(server: Server) -> None:
    server.looks = [("COMPLETED", [])]
    made = follow.create(server.state, "post-training/local", {"params": {"seed": 1}})
    assert made == follow.FlowRun("r1b2c3d4e5", "brave-otter", "post-training/local", "20260101-020304-r1b2c3")
    assert server.made[0]["parameters"] == {"params": {"seed": 1}}


def test_deployments_with_their_parameters(server: Server) -> None:
    found = follow.deployments_of(server.state, "post-training")
    assert found == {"local": {}, "gpu": {"params": {"seed": 1}}}


def test_a_silence_without_end_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SILENCE_S", 0.0)
    monkeypatch.setattr(follow, "SILENCE_LIMIT_S", 0.1)
    monkeypatch.setattr(web, "RETRY_S", 0.01)
    server.looks, server.silences = [("RUNNING", [])], 10_000
    with pytest.raises(StackError, match=r"503.*goes on"):
        _run(server, deadline_s=math.inf)


def test_a_flow_run_is_told_by_its_own_name(server: Server) -> None:
    server.looks, server.children = [("COMPLETED", ["train"])], ["purple-orca"]
    assert _run(server) == ["train", "cell of purple-orca"]


@pytest.mark.parametrize(("seconds", "told"), [(0.0, "  0:00"), (61.9, "  1:01"), (3725.0, " 62:05")])
def test_a_line_begins_with_the_minutes_since_the_start(seconds: float, told: str) -> None:
    assert follow._clock(seconds) == told  # pyright: ignore[reportPrivateUsage]


def test_a_busy_server_is_asked_again_for_the_same_run(server: Server) -> None:
    server.looks, server.refusals = [("COMPLETED", [])], 1
    _run(server)
    assert len(server.made) == 2
    assert server.made[0]["idempotency_key"] == server.made[1]["idempotency_key"]


@pytest.mark.parametrize("ending", ["FAILED", "CRASHED", "CANCELLED"])
def test_another_end_is_an_error_with_the_servers_message(server: Server, ending: str) -> None:
    server.looks = [("RUNNING", []), (ending, [])]
    with pytest.raises(StackError, match=f"brave-otter is {ending.title()}: out of road"):
        _run(server)


def test_a_run_that_takes_too_long_is_given_up(server: Server) -> None:
    server.looks = [("RUNNING", [])]
    with pytest.raises(StackError, match="it has not ended within 0 s; flow run brave-otter goes on"):
        _run(server, deadline_s=0.1)


def test_a_run_is_followed_through_a_silence_of_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SILENCE_S", 0.0)
    monkeypatch.setattr(web, "RETRY_S", 0.01)
    server.looks, server.silences = [("RUNNING", ["train"]), ("COMPLETED", ["train"])], 7
    assert _run(server) == [follow.SILENT, "train"], "said once"


def test_an_answer_that_breaks_off_is_asked_for_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "RETRY_S", 0.01)
    server.looks, server.breaks = [("COMPLETED", ["train"])], 3
    assert _run(server) == ["train"]


def test_where_the_server_stays_silent_the_run_is_said_to_go_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENCE_S", 0.0)
    monkeypatch.setattr(web, "RETRY_S", 0.01)
    server.looks, server.silences = [("RUNNING", [])], 10_000
    with pytest.raises(StackError, match=r"503.*; flow run brave-otter goes on, and `\.venv/bin/driftline report`"):
        _run(server, deadline_s=0.1)
