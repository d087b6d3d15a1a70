"""A flow run from its deployment to its end, told in a line for each thing that happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from driftline.errors import StackError
from infra import web
from infra.layout import StackState

LOOK_S = 2.0
PATIENCE_S = 60.0
"""How long a server that is busy or restarts is asked for the run; about a run that has begun, until its deadline."""
SILENCE_S = 10.0
"""Seconds without an answer after which that is said."""
SILENT = "the Prefect server does not answer, asking again"
MOST = 200
"""Tasks that are looked at, and flow runs."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


def run_deployment(
    state: StackState,
    deployment: str,
    tell: Callable[[str], None],
    *,
    deadline_s: float,
    progress: Callable[[], str | None],
) -> None:
    """Run a deployment, and return when it is completed.

    Args:
        state: The stack whose Prefect server has it.
        deployment: `flow/deployment`.
        tell: Takes a line at a time: each task that begins, each change of `progress`, and how the run ended.
        deadline_s: Seconds after which it is given up; the flow run goes on.
        progress: What the run has come to, in words; None while there is nothing to say.

    Raises:
        StackError: It ended in another state, or not in time, or the server refuses or does not answer.
    """
    api, began = state.ports.prefect_api, time.monotonic()
    found = web.send("GET", f"{api}/deployments/name/{deployment}", patience_s=PATIENCE_S)
    # The key makes a second try find the run that the first one has made.
    document = {"idempotency_key": str(uuid4())}
    run = web.send("POST", f"{api}/deployments/{found['id']}/create_flow_run", document, patience_s=PATIENCE_S)

    def tell_with_clock(line: str) -> None:
        tell(f"{_clock(time.monotonic() - began)}  {line}")

    try:
        now = _until_ended(_Server(api, began + deadline_s, tell_with_clock), run["id"], progress)
    except StackError as error:
        raise StackError(
            f"{deployment} was not followed to its end: {error}; flow run {run['name']} goes on, and "
            "`.venv/bin/driftline report` says how far it is"
        ) from error
    if now["state_type"] != "COMPLETED":
        message = (now["state"] or {}).get("message") or "without a message"
        raise StackError(f"{deployment} did not complete: flow run {now['name']} is {now['state_name']}: {message}")


@dataclass
class _Server:
    """The Prefect server, asked about a run until that ends or its time is over."""

    api: str
    until: float
    """By the monotonic clock."""
    tell: Callable[[str], None]
    _silent: bool = False

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """An answer; where there is none, the question is put again.

        Raises:
            StackError: No answer came in time, or a refusal.
        """
        while True:
            try:
                answer = web.send(method, f"{self.api}/{path}", document, patience_s=SILENCE_S)
            except web.Unanswered:
                if time.monotonic() > self.until:
                    raise
                if not self._silent:
                    self.tell(SILENT)
                self._silent = True
            else:
                self._silent = False
                return answer


def _until_ended(server: _Server, run: str, progress: Callable[[], str | None]) -> dict[str, Any]:
    """Tell what begins, and return what the flow run has become."""
    began, said = time.monotonic(), set[str]()
    while True:
        now: dict[str, Any] = server.ask("GET", f"flow_runs/{run}")
        for line in (*_begun(server, run), progress()):
            if line is not None and line not in said:
                said.add(line)
                server.tell(line)
        if now["state_type"] in ENDED:
            return now
        if time.monotonic() > server.until:
            raise StackError(f"it has not ended within {server.until - began:.0f} s")
        time.sleep(LOOK_S)


def _begun(server: _Server, run: str) -> list[str]:
    """Names of the run's tasks and of its own flow runs that have begun, in their order."""
    of_run = {"task_runs": {"flow_run_id": {"any_": [run]}}, "limit": MOST}
    tasks: list[dict[str, Any]] = server.ask("POST", "task_runs/filter", of_run)
    children = {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}, "limit": MOST}
    flows: list[dict[str, Any]] = server.ask("POST", "flow_runs/filter", children)
    # In its parent a flow run is a task as well, with a name that says nothing.
    stand_ins = {flow["parent_task_run_id"] for flow in flows}
    begun = [row for row in (*tasks, *flows) if row["start_time"] is not None and row["id"] not in stand_ins]
    return [row["name"] for row in sorted(begun, key=lambda row: row["start_time"])]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}"
