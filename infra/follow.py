"""A flow run from its deployment to its end, told in a line for each thing that happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from driftline.errors import StackError
from infra import web
from infra.layout import StackState

LOOK_S = 2.0
PATIENCE_S = 60.0
"""How long a server that is busy or restarts is asked again."""
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
        StackError: It ended in another state, or not in time, or the server refuses.
    """
    api, began = state.ports.prefect_api, time.monotonic()
    found = web.send("GET", f"{api}/deployments/name/{deployment}", patience_s=PATIENCE_S)
    # The key makes a second try find the run that the first one has made.
    document = {"idempotency_key": str(uuid4())}
    run = web.send("POST", f"{api}/deployments/{found['id']}/create_flow_run", document, patience_s=PATIENCE_S)["id"]
    said: set[str] = set()
    while True:
        now = web.send("GET", f"{api}/flow_runs/{run}", patience_s=PATIENCE_S)
        for line in (*_begun(api, run), progress()):
            if line is not None and line not in said:
                said.add(line)
                tell(f"{_clock(time.monotonic() - began)}  {line}")
        if now["state_type"] in ENDED:
            break
        if time.monotonic() - began > deadline_s:
            raise StackError(f"{deployment} has not ended within {deadline_s:.0f} s; flow run {now['name']} goes on")
        time.sleep(LOOK_S)
    if now["state_type"] != "COMPLETED":
        message = (now["state"] or {}).get("message") or "without a message"
        raise StackError(f"{deployment} did not complete: flow run {now['name']} is {now['state_name']}: {message}")


def _begun(api: str, run: str) -> list[str]:
    """Names of the run's tasks and of its own flow runs that have begun, in their order."""
    of_run = {"task_runs": {"flow_run_id": {"any_": [run]}}, "limit": MOST}
    tasks: list[dict[str, Any]] = web.send("POST", f"{api}/task_runs/filter", of_run, patience_s=PATIENCE_S)
    children = {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}, "limit": MOST}
    flows: list[dict[str, Any]] = web.send("POST", f"{api}/flow_runs/filter", children, patience_s=PATIENCE_S)
    # In its parent a flow run is a task as well, with a name that says nothing.
    stand_ins = {flow["parent_task_run_id"] for flow in flows}
    begun = [row for row in (*tasks, *flows) if row["start_time"] is not None and row["id"] not in stand_ins]
    return [row["name"] for row in sorted(begun, key=lambda row: row["start_time"])]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}"
