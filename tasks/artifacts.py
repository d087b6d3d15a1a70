"""What the Prefect page shows of a run: its progress while it goes on, its report at the end."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, aupdate_progress_artifact

from driftline.errors import DriftlineError
from driftline.records import Head, StepRecord
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.report import Report, rows
from tasks.processes import head_or_none

logger = logging.getLogger(__name__)

REFRESH_S = 10.0
_SHOWN = (
    ("success", metrics.SUCCESS_MEAN, ".2f", ""),
    ("reward", metrics.REWARD_MEAN, ".2f", ""),
    ("batch after", metrics.TIME_TO_BATCH, ".2f", " s"),
    ("step", metrics.STEP_SECONDS, ".2f", " s"),
    ("lag", metrics.LAG_STEPS_MEAN, ".2f", " versions"),
    ("k3", metrics.K3, ".2g", " nats"),
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: percent of its steps, and a line of figures."""

    percent: float
    line: str


def progress(head: Head | None, record: StepRecord | None, steps: int) -> Progress:
    """The progress of a run, from its head and its last committed step. Pure."""
    if head is None or record is None:
        return Progress(0.0, "waiting for the first step")
    shown = [
        f"{label} {record.metrics[name]:{form}}{unit}" for label, name, form, unit in _SHOWN if name in record.metrics
    ]
    return Progress(min(100.0, 100.0 * head.step / steps), " · ".join([f"step {head.step} of {steps}", *shown]))


class ProgressArtifact:
    """Keeps one progress artifact of the calling flow run up to date, at a bounded rate.

    It is an ornament: what goes wrong with it is logged, and never ends the run.
    """

    def __init__(
        self, store: RunStore, steps: int, *, every_s: float = REFRESH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._steps = steps
        self._every_s = every_s
        self._clock = clock
        self._artifact: UUID | None = None
        self._next = 0.0
        self._shown: Progress | None = None

    async def refresh(self) -> None:
        """Show how far the run is, if the last time is long enough ago. Called after each look at the children."""
        if self._clock() < self._next:
            return
        try:
            await self._show(await asyncio.to_thread(self._read))
        except Exception as error:  # the policy: see the class
            logger.warning("the progress artifact was not updated: %s", error)
        self._next = self._clock() + self._every_s

    async def finish(self) -> None:
        """Show the last state, whenever the last time was."""
        self._next = 0.0
        await self.refresh()

    def _read(self) -> Progress:
        try:
            head = head_or_none(self._store)
            record = self._store.read_step(head.record) if head is not None and head.record is not None else None
        except DriftlineError as error:
            return self._shown or Progress(0.0, f"the store does not answer: {error}")
        return progress(head, record, self._steps)

    async def _show(self, now: Progress) -> None:
        if now == self._shown:
            return
        if self._artifact is None:
            self._artifact = await acreate_progress_artifact(
                now.percent, key=key("progress", self._store.run), description=now.line
            )
        else:
            await aupdate_progress_artifact(self._artifact, now.percent, description=now.line)
        self._shown = now


async def show_report(report: Report) -> None:
    """The run's report as an artifact of the calling flow run."""
    await acreate_markdown_artifact(
        report_markdown(report), key=key("report", report.run), description=f"Report of run {report.run}"
    )


def report_markdown(report: Report) -> str:
    """The report's table in Markdown."""
    state = f"{report.state}: {report.reason}" if report.reason else report.state
    lines = [f"# Run {report.run} ({state})", "", "| | |", "|---|---|"]
    lines += [f"| {name.strip()} | {_cell(value)} |" for name, value in rows(report)]
    return "\n".join(lines) + "\n"


def key(kind: str, run: str) -> str:
    """The key of an artifact; Prefect takes lower-case letters, digits and dashes."""
    return f"{kind}-{re.sub('[^a-z0-9-]', '-', run.lower())}"


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
