"""Takes up runs again whose parent flow run was killed. Each at most `limits.resumptions` times, and never twice.

A resumption is a flow run of the same deployment with `run=<name>`. Before it is created, the object
`runs/<run>/resumptions/<n>.json` is: conditionally, so that of several programs one resumes; and it names the flow
run that crashed, so that a program which was killed between the two goes on where it was. Prefect's idempotency key
makes the creation happen once, however often it is asked for.

A run that was stopped with its stack (`driftline down`), or that crashed while it was being cancelled, is not taken
up again: somebody wanted it to stop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from driftline.errors import ObjectMissing, PreconditionFailed
from driftline.params import LimitParameters, settings
from driftline.records import FORMAT, decode, encode
from driftline.store import keys
from infra import web
from infra.flow_server import CUT_OFF
from tasks.naming import run_of

log = logging.getLogger("driftline.infra.resumptions")

FLOW = "post-training"
RECENT_S = 900.0
"""A crash older than this is history: it is not acted upon."""
NEWEST = 50
STORE_PATIENCE_S = 10.0
DEFAULT_LIMIT: int = LimitParameters.model_fields["resumptions"].default
SETTLED = ("failed", "cancelled")
"""States of a run's head after which nobody takes the run up again by himself."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The claim of one resumption: which flow run had crashed."""

    run: str
    number: int
    flow_run: str
    created_unix: float
    format: int = FORMAT


class Resumer:
    """Looks for crashed post-training flow runs, and takes their runs up again."""

    def __init__(self, api: str) -> None:
        self._api = api
        self._settled: set[str] = set()
        """Crashed flow runs about which nothing is left to do."""

    def look(self) -> None:
        """Look once.

        Raises:
            StackError: Prefect does not answer.
            StoreError: The store does not answer.
        """
        rows = self._newest()
        for crashed in to_resume(rows, time.time()):
            if crashed["id"] not in self._settled:
                self._resume(crashed)
                self._settled.add(crashed["id"])

    def _newest(self) -> list[dict[str, Any]]:
        query = {"flows": {"name": {"any_": [FLOW]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": NEWEST}
        return web.send("POST", f"{self._api}/flow_runs/filter", query)

    def _resume(self, crashed: Mapping[str, Any]) -> None:
        run = _run(crashed)
        if self._was_cancelled(crashed):
            log.warning("the flow run of run %s was killed while it was being cancelled: it is left", run)
            return
        number = claim(run, crashed)
        if number is None:
            return
        document = {
            "parameters": {**crashed["parameters"], "run": run},
            "name": f"{crashed['name'].partition('-again-')[0]}-again-{number}",
            "idempotency_key": f"resume-{run}-{number}",
            "state": {"type": "SCHEDULED"},
        }
        web.send("POST", f"{self._api}/deployments/{crashed['deployment_id']}/create_flow_run", document)
        log.warning("the flow run of run %s was killed: resumption %d is on its way", run, number)

    def _was_cancelled(self, crashed: Mapping[str, Any]) -> bool:
        states = web.send("GET", f"{self._api}/flow_run_states/?flow_run_id={crashed['id']}")
        return any(state["type"] == "CANCELLING" for state in states)


def to_resume(rows: list[dict[str, Any]], now_unix: float) -> list[dict[str, Any]]:
    """The crashed flow runs that were the last of their run, of deployments, and not long ago. Pure."""
    last: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["expected_start_time"]):
        last[_run(row)] = row
    return [
        row
        for row in last.values()
        if row["state_type"] == "CRASHED"
        and row["deployment_id"] is not None
        and row["state"]["message"] != CUT_OFF
        and now_unix - datetime.fromisoformat(row["state"]["timestamp"]).timestamp() < RECENT_S
    ]


def claim(run: str, crashed: Mapping[str, Any]) -> int | None:
    """Claim the next resumption of a run; returns its number, None where there is to be none.

    Raises:
        StoreError: The store does not answer.
    """
    # boto3 is slow to import, and most of the time there is nothing to resume.
    from driftline.store.client import open_store
    from driftline.store.run_store import RunStore

    store = RunStore(open_store(settings(), patience_s=STORE_PATIENCE_S), run)
    try:
        head = store.read_head()[0]
    except ObjectMissing:
        head = None
    if head is not None and head.state in SETTLED:
        return None
    made = [
        decode(Resumption, store.store.get(found.key).body, key=found.key)
        for found in store.store.list(keys.resumptions_prefix(run))
    ]
    mine = [found.number for found in made if found.flow_run == crashed["id"]]
    if mine:
        return mine[0]
    limit = _limit(store, crashed)
    if len(made) >= limit:
        reason = f"its flow run was killed {len(made) + 1} times, limits.resumptions allows {limit} resumptions"
        log.error("run %s is given up: %s", run, reason)
        if head is not None:
            store.end("failed", reason)
        return None
    number = len(made) + 1
    try:
        claimed = Resumption(run, number, crashed["id"], time.time())
        store.store.create(keys.resumption(run, number), encode(claimed))
    except PreconditionFailed:
        return None
    return number


def _limit(store: Any, crashed: Mapping[str, Any]) -> int:
    """`limits.resumptions` of the run; before it has a description, of the parameters it was to start with.

    Nothing else of the parameters is looked at: they may be those of another version of Driftline.
    """
    try:
        parameters: Any = store.describe().parameters
    except ObjectMissing:
        parameters = crashed["parameters"].get("params") or {}
    limits: Mapping[str, Any] = parameters.get("limits") or {}
    return int(limits.get("resumptions", DEFAULT_LIMIT))


def _run(row: Mapping[str, Any]) -> str:
    return run_of(row["id"], datetime.fromisoformat(row["expected_start_time"]), row["parameters"])
