"""Whether the parts of the stack work, and waiting until they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from driftline.errors import StackError
from infra import flow_server
from infra.layout import Layout, StackState
from infra.parts import Part, parts
from infra.supervisor import ProcessState, SupervisorClient, tail
from infra.web import answers

POLL_S = 0.25
QUIET_S = 60.0
CLOCK_SLACK_S = 1.0
"""supervisord reports starts in whole seconds."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One row of `driftline status`."""

    name: str
    state: str
    """`running`, or supervisord's word for what it is instead; `absent` where there is no supervisord."""
    healthy: bool
    detail: str
    address: str
    pid: int


def status(layout: Layout, state: StackState) -> list[PartStatus]:
    """Every part: whether its process runs, and whether it works."""
    try:
        states = SupervisorClient(layout).processes()
    except StackError:
        states = {}
    online = flow_server.online_workers(state) if states else {}
    return [part_status(part, states.get(part.name), online) for part in parts(layout, state).values()]


def part_status(part: Part, state: ProcessState | None, online: Mapping[str, float]) -> PartStatus:
    """Judge one part.

    Args:
        part: The part.
        state: What supervisord says of its process.
        online: Worker name -> Unix time of its last heartbeat, as Prefect has it.
    """
    if state is None:
        return PartStatus(part.name, "absent", False, "not running", part.address, 0)
    if not state.alive:
        return PartStatus(part.name, state.state.lower(), False, state.detail, part.address, 0)
    if part.kind == "server":
        trouble = answers(part.health)
    elif part.kind == "keeper":
        trouble = _quiet(Path(part.health), state.started_unix)
    else:
        heard = online.get(part.name, 0.0) >= state.started_unix - CLOCK_SLACK_S
        trouble = "" if heard else "Prefect has not heard from it yet"
    return PartStatus(part.name, "running", not trouble, trouble or "ok", part.address, state.pid)


def _quiet(sign: Path, started_unix: float) -> str:
    """Empty if a program has touched its sign since its start, and not long ago."""
    try:
        touched_unix = sign.stat().st_mtime
    except OSError:
        touched_unix = 0.0
    if touched_unix < started_unix - CLOCK_SLACK_S:
        return "it has not looked at the flow runs yet"
    quiet_s = time.time() - touched_unix
    return f"it has not looked at the flow runs for {quiet_s:.0f} s" if quiet_s > QUIET_S else ""


def wait_ready(
    client: SupervisorClient, layout: Layout, state: StackState, waiting: Sequence[Part], until: float, say: Say
) -> None:
    """Poll until every part works.

    Raises:
        StackError: One died, or is not ready at `until` (`time.monotonic` seconds). Ends with its log's last lines.
    """
    began_unix = time.time()
    pending = {part.name: part for part in waiting}
    while pending:
        states = client.processes()
        workers = any(part.kind == "worker" for part in pending.values())
        online = flow_server.online_workers(state) if workers else {}
        for part in list(pending.values()):
            row = part_status(part, states[part.name], online)
            if row.healthy:
                del pending[part.name]
                seconds = time.time() - max(began_unix, states[part.name].started_unix)
                say(f"{row.name} is ready ({seconds:.0f} s): {row.address}")
                continue
            refusal = _refusal(row, died=states[part.name].died, late=time.monotonic() > until)
            if refusal:
                log = layout.log(row.name)
                raise StackError(f"{refusal}. Its log, {log}, ends with:\n{tail(log)}")
        if pending:
            time.sleep(POLL_S)


def _refusal(row: PartStatus, *, died: bool, late: bool) -> str:
    if died:
        return f"{row.name} died at start ({row.detail})"
    if late:
        return f"{row.name} is not ready in time ({row.detail}): raise --start-deadline if the machine is slow"
    return ""
