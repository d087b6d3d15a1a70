"""Looks after the stack's flow runs: `python -m infra.flow_keeper`, one of its supervised programs.

| what it finds                                        | what it does                                            |
|------------------------------------------------------|---------------------------------------------------------|
| a flow run without a process (its worker died too)   | marks it as crashed, so that its parent sees it         |
| a cancelled flow run whose worker does not act       | ends its processes, then marks it as cancelled          |
| a post-training flow run that crashed, its run going | starts another for the same run (`infra.resumptions`)   |

Whoever runs a flow run carries its id in the process environment (`PREFECT__FLOW_RUN_ID`), and so does everything it
starts. What carries none of the stack's marks is none of this program's business. It looks every `LOOK_S`; a server
that is away is waited for; what it decides rests on the store and on Prefect alone, so it may be killed as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import psutil

from driftline.errors import DriftlineError, StackError
from driftline.params import settings
from infra import processes, web
from infra.layout import Layout, StackState, read_state
from infra.parts import POOLS
from infra.resumptions import Resumer

log = logging.getLogger("driftline.infra.flow_keeper")

LOOK_S = 3.0
LOST_S = 4.0
"""How long a flow run may be without a process: more than one look."""
PENDING_S = 60.0
"""How long a worker may take between taking a flow run up and starting its process."""
UNHEARD_S = 20.0
"""How long a worker that lives may take to act on a cancellation: it may have missed it while the server was away."""
END_S = 20.0
"""Between SIGTERM and SIGKILL of a cancelled flow run whose worker is gone, or does not act."""
FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
UNFINISHED = ("RUNNING", "PENDING", "CANCELLING")

Verdict = Literal["leave", "end", "crashed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A flow run that has not ended, as one look finds it."""

    state: str
    in_state_s: float
    lost_s: float
    """Seconds for which no process was seen that carries its id; 0 while there is one."""
    orphaned: bool
    """Whether it has a process, and the worker that started it is gone."""


def verdict(seen: Sighting) -> Verdict:
    """What to do about a flow run. Pure."""
    if seen.lost_s >= LOST_S and (seen.state != "PENDING" or seen.in_state_s >= PENDING_S):
        return "cancelled" if seen.state == "CANCELLING" else "crashed"
    unheard = seen.orphaned or seen.in_state_s >= UNHEARD_S
    return "end" if seen.state == "CANCELLING" and seen.lost_s == 0 and unheard else "leave"


class FlowKeeper:
    """One look after another at the flow runs of a stack."""

    def __init__(self, layout: Layout, state: StackState) -> None:
        self._layout = layout
        self._api = state.ports.prefect_api
        self._resumer = Resumer(self._api)
        self._seen_at: dict[str, float] = {}
        """Flow run -> `time.monotonic` at which it was first seen, or last seen with a process."""

    def look(self) -> None:
        """Look once.

        Raises:
            StackError: Prefect does not answer.
            StoreError: A run is to be resumed, and the store does not answer.
        """
        rows = self._unfinished()
        carriers = self._carriers() if rows else {}
        now = time.monotonic()
        self._seen_at = {row["id"]: self._seen_at.get(row["id"], now) for row in rows}
        for row in rows:
            mine = carriers.get(row["id"], [])
            if mine:
                self._seen_at[row["id"]] = now
            lost_s = now - self._seen_at[row["id"]]
            self._act(row, Sighting(row["state_type"], _age_s(row), lost_s, is_orphaned(mine)), mine)
        self._resumer.look()

    def _unfinished(self) -> list[dict[str, Any]]:
        query = {
            "flow_runs": {"state": {"type": {"any_": list(UNFINISHED)}}},
            "work_pools": {"name": {"any_": list(POOLS)}},
            "limit": 200,
        }
        return web.send("POST", f"{self._api}/flow_runs/filter", query)

    def _carriers(self) -> dict[str, list[psutil.Process]]:
        """Flow run -> the processes of the stack that carry its id, oldest first."""
        found: dict[str, list[psutil.Process]] = {}
        for process in processes.marked(self._layout.root):
            flow_run = processes.variable(process, FLOW_RUN_VARIABLE)
            if flow_run is not None:
                found.setdefault(flow_run, []).append(process)
        return found

    def _act(self, row: Mapping[str, Any], seen: Sighting, mine: Sequence[psutil.Process]) -> None:
        match verdict(seen):
            case "end":
                log.warning("flow run %s is cancelled and its worker does not act: ending its processes", row["name"])
                processes.end(mine[:1], terminate_s=END_S)
                processes.end(mine[1:], terminate_s=1.0)
            case "crashed":
                log.warning("flow run %s has no process any more: it is now marked as crashed", row["name"])
                self._settle(row, "CRASHED", "Its process died, and its worker did not tell.")
            case "cancelled":
                self._settle(row, "CANCELLED", "Its process has ended; the worker that had started it was gone.")
            case "leave":
                pass

    def _settle(self, row: Mapping[str, Any], kind: str, message: str) -> None:
        document = {"state": {"type": kind, "message": message}, "force": True}
        web.send("POST", f"{self._api}/flow_runs/{row['id']}/set_state", document)


def is_orphaned(mine: Sequence[psutil.Process]) -> bool:
    """Whether a flow run's processes were started by none that is still there: workers are not adopted."""
    pids = {process.pid for process in mine}
    try:
        parents = [process.parent() for process in mine if process.ppid() not in pids]
    except psutil.Error:
        return False
    starters = [parent for parent in parents if parent is not None]
    return bool(mine) and not any(processes.variable(starter, processes.STACK_VARIABLE) for starter in starters)


def _age_s(row: Mapping[str, Any]) -> float:
    """Seconds for which a flow run has been in its state."""
    return time.time() - datetime.fromisoformat(row["state"]["timestamp"]).timestamp()


def keep(keeper: FlowKeeper, sign: Path) -> None:
    """Look, for ever; the time of the file `sign` shows that this program is at work."""
    away = ""
    while True:
        began = time.monotonic()
        try:
            keeper.look()
            away = ""
        except DriftlineError as error:
            if type(error).__name__ != away:
                log.warning("cannot look after the flow runs yet: %s", error)
            away = type(error).__name__
        sign.touch()
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))


def main() -> None:
    """Look after the flow runs of the stack that the settings name."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    layout = Layout.of(settings().work_dir, Path.cwd())
    state = read_state(layout)
    if state is None:
        raise StackError(f"{layout.root} is no stack: run `driftline up`")
    keep(FlowKeeper(layout, state), layout.sign("flow-keeper"))


if __name__ == "__main__":
    main()
