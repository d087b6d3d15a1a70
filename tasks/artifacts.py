"""What the Prefect page shows of a run: its progress and offsets while it goes on, its report at the end."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from driftline.errors import DriftlineError
from driftline.offsets.answers import RECENT_STEPS, offset
from driftline.offsets.followed import Latest
from driftline.offsets.models import Offset
from driftline.offsets.reader import RunReader
from driftline.records import Head, StepRecord
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.report import WORDS, Report, addresses, rows, state
from driftline.tracking.verdict import FEWEST_STEPS, WINDOW_STEPS, judge
from tasks.processes import head_or_none

logger = logging.getLogger(__name__)

REFRESH_S = 10.0
ShownT = TypeVar("ShownT")
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


def progress(head: Head | None, records: Sequence[StepRecord], steps: int) -> Progress:
    """The progress of a run, from its head and its last committed steps, in order. Pure."""
    if head is None or not records:
        return Progress(0.0, "waiting for the first step")
    figures = records[-1].metrics
    shown = [f"{label} {figures[name]:{form}}{unit}" for label, name, form, unit in _SHOWN if name in figures]
    verdict = judge(records, {}) if len(records) >= FEWEST_STEPS else None
    if verdict is not None:
        shown.append(f"bound by {verdict.bound}, {verdict.shares[verdict.bound]:.0%}")
    return Progress(min(100.0, 100.0 * head.step / steps), " · ".join([f"step {head.step} of {steps}", *shown]))


class _Kept(Generic[ShownT]):
    """Keeps one artifact of the calling flow run up to date, at a bounded rate.

    It is an ornament: what goes wrong with it is logged, and never ends the run.
    """

    def __init__(
        self, store: RunStore, *, every_s: float = REFRESH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._every_s = every_s
        self._clock = clock
        self._artifact: UUID | None = None
        self._next = 0.0
        self._shown: ShownT | None = None

    async def refresh(self) -> None:
        """Show how the run is, if the last time is long enough ago. Called after each look at the children."""
        if self._clock() < self._next:
            return
        try:
            now = await asyncio.to_thread(self._read)
            if now is not None and now != self._shown:
                await self._show(now)
                self._shown = now
        except Exception as error:  # the policy: see the class
            logger.warning("the %s was not updated: %s", type(self).__name__, error)
        self._next = self._clock() + self._every_s

    async def finish(self) -> None:
        """Show the last state, whenever the last time was."""
        self._next = 0.0
        await self.refresh()

    def _read(self) -> ShownT | None:
        """What is to be shown; None for nothing yet. Blocks."""
        raise NotImplementedError

    async def _show(self, now: ShownT) -> None:
        raise NotImplementedError


class ProgressArtifact(_Kept[Progress]):
    """How far the run is."""

    def __init__(self, store: RunStore, steps: int, **options: Any) -> None:
        super().__init__(store, **options)
        self._steps = steps

    def _read(self) -> Progress:
        try:
            head = head_or_none(self._store)
            records = self._store.last_steps(WINDOW_STEPS) if head is not None and head.record is not None else []
        except DriftlineError as error:
            return self._shown or Progress(0.0, f"the store does not answer: {error}")
        return progress(head, records, self._steps)

    async def _show(self, now: Progress) -> None:
        if self._artifact is None:
            self._artifact = await acreate_progress_artifact(
                now.percent, key=key("progress", self._store.run), description=now.line
            )
        else:
            await aupdate_progress_artifact(self._artifact, now.percent, description=now.line)


class OffsetsArtifact(_Kept[str]):
    """How far generation is from training: one artifact of a run, updated, as the offset API has it."""

    def __init__(self, store: RunStore, *, wall_clock: Callable[[], float] = time.time, **options: Any) -> None:
        super().__init__(store, **options)
        self._wall_clock = wall_clock
        self._reader = RunReader(store.store, store.run, most_steps=RECENT_STEPS, timeline=False, clock=wall_clock)

    def _read(self) -> str | None:
        view = self._reader.read()
        return offsets_markdown(offset(Latest(view, 0.0), self._wall_clock())) if view.head is not None else None

    async def _show(self, now: str) -> None:
        if self._artifact is None:
            self._artifact = await acreate_markdown_artifact(
                now, key=key("offsets", self._store.run), description=f"Offsets of run {self._store.run}"
            )
        else:
            async with get_client() as client:
                await client.update_artifact(self._artifact, ArtifactUpdate(data=now))


def offsets_markdown(found: Offset) -> str:
    """Where a run and its engines stand, in Markdown; figures under the names of MLflow."""
    planned = f" of {found.steps_planned}" if found.steps_planned is not None else ""
    cause = f"**{found.diagnosis.cause}**: {found.diagnosis.why}" if found.diagnosis is not None else "not diagnosed"
    budget = f", budget {found.budget_k3_nats:.2g} nats" if found.budget_k3_nats is not None else ""
    lines = [
        f"# Offsets of run {found.run} ({found.state})",
        "",
        f"Step {found.step}{planned}, version {found.version}, lead {found.lead_groups} groups{budget}.",
        "",
        f"Cause of the divergence: {_cell(cause)}",
        "",
        "| engine | version | behind | k3 of its tokens | floor | off the probe | heard of |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine in found.engines:
        behind = "unknown" if engine.lag_versions is None else f"{engine.lag_versions} versions"
        k3 = engine.divergence.k3_nats if engine.divergence is not None else None
        figures = " | ".join(map(_nats, (k3, engine.floor_k3_nats, engine.probe_difference_nats)))
        alive = "yes" if engine.alive else "silent"
        lines.append(f"| {_cell(engine.engine)} | {engine.version} | {behind} | {figures} | {alive} |")
    lines += ["", "| metric | last step |", "|---|---|"]
    shown = [name for name in found.metrics if name.startswith(("divergence/", "lag/", "time_to_batch/"))]
    lines += [f"| `{name}` | {found.metrics[name]:.4g} |" for name in shown]
    return "\n".join(lines) + "\n"


def _nats(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2g} nats"


async def show_report(report: Report) -> None:
    """The run's report as an artifact of the calling flow run."""
    await acreate_markdown_artifact(
        report_markdown(report), key=key("report", report.run), description=f"Report of run {report.run}"
    )


def report_markdown(report: Report) -> str:
    """The report's table in Markdown."""
    lines = [f"# Run {report.run} ({state(report)})", "", "| | |", "|---|---|"]
    lines += [f"| {name.strip()} | {_cell(value)} |" for name, value in (*rows(report), *addresses(report))]
    return "\n".join([*lines, "", WORDS]) + "\n"


def key(kind: str, run: str) -> str:
    """The key of an artifact; Prefect takes lower-case letters, digits and dashes."""
    return f"{kind}-{re.sub('[^a-z0-9-]', '-', run.lower())}"


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
