"""A flow run from its deployment to its end, told in a line for each thing that happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from driftline.errors import StackError
from infra import web
from infra.layout import StackState
from tasks.naming import run_of

LOOK_S = 2.0
PATIENCE_S = 60.0
"""How long a server that is busy or restarts is asked for the run; about a run that has begun, until its deadline."""
SILENCE_S = 10.0
"""Seconds without an answer after which that is said."""
SILENCE_LIMIT_S = 1800.0
"""Seconds without an answer after which a run is followed no longer, whatever its deadline."""
WAITS = {
    "AwaitingConcurrencySlot": "waits until the run before it has ended: there is one at a time",
    "Late": "waits for a worker: `.venv/bin/driftline status` says whether there is one",
}
"""Name of a state -> what a flow run in it waits for."""
SILENT = "the Prefect server does not answer, asking again"
MOST = 200
"""Tasks that are looked at, and flow runs."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


@dataclass(frozen=True, slots=True)
class FlowRun:
    """A flow run that was made."""

    id: str
    name: str
    deployment: str
    """`flow/deployment`."""
    run: str
    """The post-training run that it works on, where it is one of post-training."""


def deployments_of(state: StackState, flow: str) -> dict[str, Mapping[str, Any]]:
    """Name of each deployment of a flow -> the parameters that its flow runs have where they are given none.

    Raises:
        StackError: The server does not answer.
    """
    of_flow = {"flows": {"name": {"any_": [flow]}}, "limit": MOST}
    found = web.send("POST", f"{state.ports.prefect_api}/deployments/filter", of_flow, patience_s=PATIENCE_S)
    return {row["name"]: row["parameters"] or {} for row in found}


def create(state: StackState, deployment: str, parameters: Mapping[str, Any] | None = None) -> FlowRun:
    """Make a flow run of a deployment, to begin at once.

    Args:
        state: The stack whose Prefect server has it.
        deployment: `flow/deployment`.
        parameters: Of the flow; what is left out is as the deployment has it.

    Raises:
        StackError: There is no such deployment, or the server refuses or does not answer.
    """
    api = state.ports.prefect_api
    found = web.send("GET", f"{api}/deployments/name/{deployment}", patience_s=PATIENCE_S)
    # The key makes a second try find the run that the first one has made.
    document = {"idempotency_key": str(uuid4()), "parameters": dict(parameters or {})}
    made = web.send("POST", f"{api}/deployments/{found['id']}/create_flow_run", document, patience_s=PATIENCE_S)
    run = run_of(made["id"], datetime.fromisoformat(made["expected_start_time"]), made["parameters"])
    return FlowRun(made["id"], made["name"], deployment, run)


def follow(
    state: StackState,
    flow_run: FlowRun,
    tell: Callable[[str], None],
    *,
    deadline_s: float,
    progress: Callable[[], str | None],
) -> None:
    """Return when a flow run is completed.

    Args:
        state: The stack whose Prefect server has it.
        flow_run: The flow run.
        tell: Takes a line at a time: each task that begins, each change of `progress`, and what it waits for.
        deadline_s: Seconds after which it is given up; the flow run goes on.
        progress: What the run has come to, in words; None while there is nothing to say.

    Raises:
        StackError: It ended in another state, or not in time, or the server refuses or does not answer.
    """
    began = time.monotonic()

    def tell_with_clock(line: str) -> None:
        tell(f"{_clock(time.monotonic() - began)}  {line}")

    server = _Server(state.ports.prefect_api, began + deadline_s, tell_with_clock)
    try:
        now = _until_ended(server, flow_run.id, progress)
    except StackError as error:
        raise StackError(
            f"{flow_run.deployment} was not followed to its end: {error}; flow run {flow_run.name} goes on, and "
            "`.venv/bin/driftline report` says how far it is"
        ) from error
    if now["state_type"] != "COMPLETED":
        message = (now["state"] or {}).get("message") or "without a message"
        raise StackError(
            f"{flow_run.deployment} did not complete: flow run {now['name']} is {now['state_name']}: {message}"
        )


@dataclass
class _Server:
    """The Prefect server, asked about a run until that ends or its time is over."""

    api: str
    until: float
    """By the monotonic clock."""
    tell: Callable[[str], None]
    _silent: bool = False

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """An answer; where there is none, the question is put again, until the deadline or `SILENCE_LIMIT_S` later.

        Raises:
            StackError: No answer came in time, or a refusal.
        """
        until = min(self.until, time.monotonic() + SILENCE_LIMIT_S)
        while True:
            try:
                answer = web.send(method, f"{self.api}/{path}", document, patience_s=SILENCE_S)
            except web.Unanswered:
                if time.monotonic() > until:
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
        for line in (WAITS.get(now["state_name"]), *_begun(server, run), progress()):
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
