"""What the stack asks of its Prefect server: work pools, live workers, runs that were cut off, deployments."""

from __future__ import annotations

import hashlib
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
PATIENCE_S = 60.0
UNFINISHED = ("RUNNING", "PENDING", "CANCELLING")
CUT_OFF = "The local stack was stopped while this run was under way."


def create_pools(layout: Layout, state: StackState) -> None:
    """Create the three work pools, or bring their templates up to date (`infra/work-pools/<pool>.json`).

    Raises:
        StackError: The server refuses.
    """
    pools = f"{state.ports.prefect_api}/work_pools"
    wanted = {pool: _template(layout, pool) for pool in POOLS}
    query = {"work_pools": {"name": {"any_": list(POOLS)}}}
    found = {row["name"]: row for row in web.send("POST", f"{pools}/filter", query, patience_s=PATIENCE_S)}
    for pool, template in wanted.items():
        if pool not in found:
            document = {"name": pool, "type": "process", "base_job_template": template}
            web.send("POST", f"{pools}/", document, patience_s=PATIENCE_S)
        elif found[pool]["base_job_template"] != template:
            web.send("PATCH", f"{pools}/{pool}", {"base_job_template": template}, patience_s=PATIENCE_S)


def _template(layout: Layout, pool: str) -> dict[str, Any]:
    template = json.loads((layout.repository / "infra" / "work-pools" / f"{pool}.json").read_text())
    template["variables"]["properties"]["working_dir"]["default"] = str(layout.repository)
    return template


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
    runs: list[dict[str, Any]] = web.send(
        "POST", f"{state.ports.prefect_api}/flow_runs/filter", query, patience_s=PATIENCE_S
    )
    crashed = {"type": "CRASHED", "message": CUT_OFF}
    for run in runs:
        address = f"{state.ports.prefect_api}/flow_runs/{run['id']}/set_state"
        web.send("POST", address, {"state": crashed, "force": True}, patience_s=PATIENCE_S)
    return [run["name"] for run in runs]


def deploy(layout: Layout, state: StackState) -> float | None:
    """Register every deployment of `prefect.yaml`; returns the seconds it took.

    None if nothing that makes up a deployment has changed since the last time: the stamp lies beside Prefect's
    database, so that it goes when that goes.

    Raises:
        StackError: Prefect refuses one, or does not end in time.
    """
    stamp = layout.data("prefect") / "deployed"
    current = f"{state.ports.prefect_api} {_deployment_digest(layout)}"
    if stamp.exists() and stamp.read_text() == current:
        return None
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
    stamp.write_text(current)
    return time.monotonic() - began


def _deployment_digest(layout: Layout) -> str:
    """One hash of what `prefect deploy` reads: the file itself, the flows' signatures, the parameters' schema."""
    root = layout.repository
    library = root / "src" / "driftline"
    sources = [
        root / "prefect.yaml",
        library / "params.py",
        *(library / "sections").rglob("*.py"),
        *(root / "flows").rglob("*.py"),
    ]
    whole = hashlib.sha256()
    for source in sorted(sources):
        whole.update(str(source).encode() + b"\0" + source.read_bytes() + b"\0")
    return whole.hexdigest()


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
