"""The logger of the flow run, and what its child processes tell: logs and warnings."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from logging import ERROR, INFO, WARNING, Logger, LoggerAdapter
from typing import Any

from prefect import get_run_logger
from prefect.events import emit_event
from prefect.exceptions import MissingContextError
from prefect.runtime import flow_run
from rich.console import Console

RunLogger = Logger | LoggerAdapter[Logger]
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|WARNING|INFO|DEBUG)\b")
_STAMP = re.compile(
    r"^(\([^)]*\) )?"  # vLLM's process
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ |[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d )"
)
"""Time and level of a line of `driftline.process.child`, or of vLLM."""
_LEVELS = {"ERROR": ERROR, "CRITICAL": ERROR, "WARNING": WARNING}


def run_logger() -> RunLogger:
    """The logger of the calling flow or task run; a plain one outside of both."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("driftline.tasks")


def forward(logger: RunLogger, line: str) -> None:
    """Pass a child's log line on, at its own level; its time and level go, as the logger writes its own."""
    found = _LEVEL.search(line[:80])
    logger.log(_LEVELS.get(found.group(1), INFO) if found else INFO, "%s", _STAMP.sub(r"\1", line, count=1))


def announce(event: Mapping[str, Any]) -> None:
    """Make a child's warning an event of the calling flow run in Prefect; other events, and other callers, make none.

    Its name is `driftline.` and the warning's type, such as `driftline.Diagnosis`: an automation can wait for it. Its
    payload is the message, with the figures behind it where there are any.
    """
    if event["event"] != "warning" or flow_run.id is None:
        return
    resource = {
        "prefect.resource.id": f"prefect.flow-run.{flow_run.id}",
        "prefect.resource.name": flow_run.name or "",
    }
    payload = {"message": event["message"], **event.get("figures", {})}
    emit_event(f"driftline.{event['type']}", resource=resource, payload=payload)


def outlive_worker() -> None:
    """Let this process go on when the worker that reads its output was killed: its lines are lost, the run is not.

    Prefect logs through rich, which ends the process at the first line that nobody reads.
    """
    Console.on_broken_pipe = _to_nowhere


def _to_nowhere(self: Console) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
