"""What there is to kill in a local stack, and how its processes are told apart.

supervisord puts the name of its program into the environment of what it starts (`SUPERVISOR_PROCESS_NAME`), and a
worker's flow runs inherit it: so the flow run of a parent is known from that of its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from infra import processes

PROGRAM_VARIABLE = "SUPERVISOR_PROCESS_NAME"


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of the stack."""

    process: psutil.Process
    command: str
    program: str


def look(root: Path) -> list[Seen]:
    """The stack's processes, oldest first."""
    found: list[Seen] = []
    for process in processes.marked(root):
        with contextlib.suppress(psutil.Error):
            command = " ".join([process.name(), *process.cmdline()])
            found.append(Seen(process, command, processes.variable(process, PROGRAM_VARIABLE) or ""))
    return found


def _runs(text: str, program: str = "") -> Callable[[Seen], bool]:
    return lambda seen: text in seen.command and seen.program.startswith(program)


TARGETS: Mapping[str, Callable[[Seen], bool]] = {
    "engine": _runs("EngineCore"),
    "cell": _runs("driftline.rollout.cell"),
    "trainer": _runs("driftline.training.entry"),
    "trainer-flow": _runs("prefect.engine", "worker-train"),
    "parent-flow": _runs("prefect.engine", "worker-cpu"),
    "cell-flow": _runs("prefect.engine", "worker-rollout"),
    "worker": _runs("worker start", "worker-"),
    "seaweedfs": _runs("weed server", "seaweedfs"),
    "mlflow": _runs("mlflow", "mlflow"),
    "prefect": _runs("prefect_server", "prefect"),
    "keeper": _runs("infra.flow_keeper", "flow-keeper"),
}


def kill(root: Path, target: str, rng: Random) -> str | None:
    """SIGKILL one process of a kind; returns what it was, None where there is none at the moment."""
    chosen = [seen for seen in look(root) if TARGETS[target](seen)]
    if not chosen:
        return None
    victim = rng.choice(chosen)
    try:
        os.kill(victim.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"{victim.process.pid} {victim.command[:120]}"
