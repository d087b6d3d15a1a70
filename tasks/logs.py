"""The logger of the flow run, and the logs of child processes in it."""

from __future__ import annotations

import logging
import os
import re
from logging import ERROR, INFO, WARNING, Logger, LoggerAdapter

from prefect import get_run_logger
from prefect.exceptions import MissingContextError
from rich.console import Console

RunLogger = Logger | LoggerAdapter[Logger]
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|WARNING|INFO|DEBUG)\b")
_LEVELS = {"ERROR": ERROR, "CRITICAL": ERROR, "WARNING": WARNING}


def run_logger() -> RunLogger:
    """The logger of the calling flow or task run; a plain one outside of both."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("driftline.tasks")


def forward(logger: RunLogger, line: str) -> None:
    """Pass a child's log line on, at its own level."""
    found = _LEVEL.search(line[:80])
    logger.log(_LEVELS.get(found.group(1), INFO) if found else INFO, "%s", line)


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
