"""What the stack asks of its Prefect server: work pools, live workers, runs that were cut off, deployments."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from driftline.errors import StackError
from infra import environment, web
from infra.layout import Layout, StackState, credentials
from infra.parts import POOLS, program
from infra.supervisor import tail

DEPLOY_DEADLINE_S = 300.0
UNFINISHED = ("RUNNING", "PENDING", "CANCELLING")


def create_pools(layout: Layout, state: StackState) -> None:
    """Create the three work pools, or bring their templates up to date (`infra/work-pools/<pool>.json`).

    Raises:
        StackError: The server refuses.
    """
    for pool in POOLS:
        template = json.loads((layout.repository / "infra" / "work-pools" / f"{pool}.json").read_text())
        template["variables"]["properties"]["working_dir"]["default"] = str(layout.repository)
        found = web.send(
            "POST", f"{state.ports.prefect_api}/work_pools/filter", {"work_pools": {"name": {"any_": [pool]}}}
        )
        if found:
            web.send("PATCH", f"{state.ports.prefect_api}/work_pools/{pool}", {"base_job_template": template})
        else:
            web.send(
                "POST",
                f"{state.ports.prefect_api}/work_pools/",
                {"name": pool, "type": "process", "base_job_template": template},
            )


def online_workers(state: StackState) -> dict[str, float]:
    """Worker name -> Unix time of its last heartbeat, for the workers that the server counts as online."""
    online: dict[str, float] = {}
    for pool in POOLS:
        try:
            rows = web.send("POST", f"{state.ports.prefect_api}/work_pools/{pool}/workers/filter", {"limit": 50})
        except StackError:
            continue
        for row in rows:
            if row["status"] == "ONLINE" and row["last_heartbeat_time"]:
                online[row["name"]] = datetime.fromisoformat(row["last_heartbeat_time"]).timestamp()
    return online


def settle_cut_off_runs(state: StackState) -> list[str]:
    """Mark flow runs that an earlier stop of the stack cut off as crashed; returns their names.

    Only to be called while no worker runs: then nothing can be executing them.

    Raises:
        StackError: The server refuses.
    """
    query = {"flow_runs": {"state": {"type": {"any_": list(UNFINISHED)}}}, "limit": 200}
    runs: list[dict[str, Any]] = web.send("POST", f"{state.ports.prefect_api}/flow_runs/filter", query)
    crashed = {"type": "CRASHED", "message": "The local stack was stopped while this run was under way."}
    for run in runs:
        web.send(
            "POST", f"{state.ports.prefect_api}/flow_runs/{run['id']}/set_state", {"state": crashed, "force": True}
        )
    return [run["name"] for run in runs]


def deploy(layout: Layout, state: StackState) -> float:
    """Register every deployment of `prefect.yaml`; returns the seconds it took.

    Raises:
        StackError: Prefect refuses one, or does not end in time.
    """
    began = time.monotonic()
    log = layout.log("deploy")
    try:
        with log.open("wb") as output:
            code = run_prefect(
                layout, state, ["--no-prompt", "deploy", "--all"], deadline_s=DEPLOY_DEADLINE_S, output=output
            )
    except subprocess.TimeoutExpired as error:
        raise StackError(f"`prefect deploy --all` took more than {DEPLOY_DEADLINE_S:.0f} s: see {log}") from error
    if code:
        raise StackError(f"`prefect deploy --all` failed. Its output, {log}, ends with:\n{tail(log, 25)}")
    return time.monotonic() - began


def run_prefect(
    layout: Layout,
    state: StackState,
    arguments: Sequence[str],
    *,
    deadline_s: float | None = None,
    output: Any = None,
) -> int:
    """Run Prefect's command line against this stack from the repository root; returns its exit code."""
    return subprocess.run(
        [program("prefect"), *arguments],
        env=environment.client(layout, state, credentials(layout), os.environ),
        cwd=layout.repository,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        check=False,
        timeout=deadline_s,
    ).returncode
