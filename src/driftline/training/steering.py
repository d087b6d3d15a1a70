"""What a run is steered by, all of it read from step records: the next lead, and why engine and trainer disagree.

    batch, statistics ─▶ figures by lag, environment, cell ─▶ step record ─┬─▶ next lead (HEAD)
                                              cells' offset reports ───────┴─▶ diagnosis

Pure: no store, no clock. A restarted trainer that reads the records decides as the first one would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from driftline.divergence.diagnosis import CAUSES, DiagnosisLimits, EngineFigures, diagnose
from driftline.divergence.overlap import (
    DivergenceBudget,
    LeadDecision,
    LeadLimits,
    OverlapMeasurement,
    effective_lead,
    next_lead,
)
from driftline.measured import NOTHING, PROBE_NATS, Diagnosis, DivergenceSummary, pooled
from driftline.params import RunParameters
from driftline.records import Group, OffsetReport, StepRecord, Trajectory
from driftline.tracking import metrics
from driftline.training.batching import Judged
from driftline.training.floors import CellFloor, divided, floors_of
from driftline.training.segments import sampled_segments
from driftline.training.statistics import StepStatistics

FLOOR_MEMORY_STEPS = 50
"""Steps for which a cell's floor stands while no newer one is measured: a deep lead leaves no tokens of lag 0."""


@dataclass(frozen=True, slots=True)
class BatchDivergence:
    """The divergence of a batch before its step, divided as a record holds it."""

    by_lag: Mapping[int, DivergenceSummary]
    by_environment: Mapping[str, DivergenceSummary]
    floor_by_cell: Mapping[str, DivergenceSummary]
    """Of what each cell's newest incarnation generated."""
    incarnations: Mapping[str, str]
    """Cell -> that incarnation."""


def batch_divergence(groups: Sequence[Group], statistics: StepStatistics, version: int) -> BatchDivergence:
    """Divide what was measured of a batch.

    Args:
        groups: The batch.
        statistics: Of its step; without sequences, lags alone are told apart.
        version: Number of the version trained from.
    """
    members = [(group, member) for group in groups for member in group.trajectories if member.valid]
    measured = [
        (group, member, found)
        for (group, member), found in zip(members, statistics.by_sequence, strict=bool(statistics.by_sequence))
    ]
    floors = floors_of(one for one in measured if _all_new(one[1], version))
    return BatchDivergence(
        by_lag=statistics.by_lag,
        by_environment=divided((member.environment, found) for _, member, found in measured),
        floor_by_cell=floors.by_cell,
        incarnations=floors.incarnations,
    )


def scored_divergence(judged: Iterable[Judged]) -> BatchDivergence:
    """Divide what was measured of groups that were scored, whether or not anything of them is admitted."""
    found = [
        (one, member, score)
        for one in judged
        for member, score in zip(one.group.trajectories, one.score or (), strict=one.score is not None)
        if score is not None and score.finite
    ]
    floors = floors_of(
        (one.group, member, score.divergence) for one, member, score in found if _all_new(member, one.version)
    )
    return BatchDivergence(
        by_lag=divided(part for _, _, score in found for part in score.by_lag.items()),
        by_environment=divided((member.environment, score.divergence) for _, member, score in found),
        floor_by_cell=floors.by_cell,
        incarnations=floors.incarnations,
    )


class Steering:
    """Follows the steps of a run, and says how far generation may run ahead of the next one."""

    def __init__(self, records: Sequence[StepRecord], params: RunParameters) -> None:
        """Begin after the committed steps of the run, in order."""
        overlap, step = params.overlap, params.rollout.groups_per_step
        self._controlled = overlap.controller == "divergence"
        self._budget = DivergenceBudget(overlap.budget_k3_nats)
        self._limits = LeadLimits(
            overlap.lowest_groups, params.highest_lead_groups, step, overlap.step_groups or step
        )
        self._causes = DiagnosisLimits(params.floor_k3_nats, overlap.budget_k3_nats, PROBE_NATS[params.coarser_dtype])
        self._history: list[OverlapMeasurement] = []
        self._lags: deque[Mapping[int, DivergenceSummary]] = deque(maxlen=params.diagnosis.window_steps)
        self._floors: dict[str, CellFloor] = {}
        self._window = params.diagnosis.window_steps
        self.diagnosis: Diagnosis | None = records[-1].diagnosis if records else None
        """Of the last step."""
        for record in records:
            self._follow(record)

    def judge(self, record: StepRecord, reports: Sequence[OffsetReport]) -> tuple[StepRecord, int]:
        """Follow a step that is about to be committed.

        Args:
            record: Its record, but for `lead_why`, `diagnosis` and their metrics.
            reports: The cells' newest.

        Returns:
            The record with them, and the lead of the next step, in groups.
        """
        self._follow(record)
        decision = self._decide(record.lead_groups)
        self.diagnosis = diagnose(self._engines(record.version_in.number, reports), self._by_lag(), self._causes)
        step = self._limits.groups_per_step
        floor = pooled(record.floor_by_cell.values())
        values = {
            **({metrics.FLOOR_K3: floor.k3} if floor.tokens else {}),
            metrics.LEAD_GROUPS: float(record.lead_groups),
            metrics.EFFECTIVE_LEAD_GROUPS: effective_lead(self._history[-1:], step),
            metrics.BUDGET_SHARE: self._history[-1].k3_nats / self._budget.k3_nats,
            metrics.CAUSE: float(CAUSES.index(self.diagnosis.cause)),
        }
        judged = replace(
            record,
            lead_why=decision.why if self._controlled else "",
            diagnosis=self.diagnosis,
            metrics={**record.metrics, **values},
        )
        return judged, decision.lead_groups

    def diagnose_unused(self, scored: Sequence[Judged], reports: Sequence[OffsetReport]) -> Diagnosis | None:
        """Name the cause of what keeps groups from being trained on, while no step comes of them.

        Args:
            scored: Groups scored under the version that the next step trains from, and used by none.
            reports: The cells' newest.

        Returns:
            It, from these groups alone (and the floors of cells that have none of them); None where they are of too
            few tokens to tell.
        """
        found = scored_divergence(scored)
        if pooled(found.by_lag.values()).tokens < self._causes.fewest_tokens:
            return None
        newer = {
            cell: self._of_cell(cell, found.incarnations[cell]).instead(found.incarnations[cell], floor)
            for cell, floor in found.floor_by_cell.items()
        }
        engines = self._engines(scored[0].version, reports, newer)
        self.diagnosis = diagnose(engines, found.by_lag, self._causes)
        return self.diagnosis

    def _decide(self, lead_groups: int) -> LeadDecision:
        if not self._controlled:
            return LeadDecision(lead_groups, "within budget")
        return next_lead(self._history, lead_groups, self._budget, self._limits)

    def _follow(self, record: StepRecord) -> None:
        """Take in the figures of a step."""
        self._lags.append(record.by_lag)
        for cell, floor in record.floor_by_cell.items():
            incarnation = record.incarnations.get(cell, "")
            self._floors[cell] = self._of_cell(cell, incarnation)
            self._floors[cell].follow(incarnation, record.step, floor)
        for cell, known in [*self._floors.items()]:
            if known.last_step <= record.step - FLOOR_MEMORY_STEPS:
                del self._floors[cell]
        measured = OverlapMeasurement(
            lead_groups=record.lead_groups,
            k3_nats=record.metrics[metrics.K3],
            floor_k3_nats=pooled(known.pooled for known in self._floors.values()).k3,
            lag_versions=record.metrics[metrics.LAG_STEPS_MEAN],
        )
        self._history.append(measured)

    def _of_cell(self, cell: str, incarnation: str) -> CellFloor:
        """What is known of a cell; nothing yet of an incarnation where it is nothing."""
        return self._floors.get(cell) or CellFloor(incarnation, self._window)

    def _by_lag(self) -> dict[int, DivergenceSummary]:
        """Of the tokens of the last steps."""
        return divided((lag, found) for step in self._lags for lag, found in step.items())

    def _engines(
        self, version: int, reports: Sequence[OffsetReport], newer: Mapping[str, CellFloor] | None = None
    ) -> list[EngineFigures]:
        """The engines of cells that have seen one of the last versions, or whose floor is known.

        Args:
            version: Number of the version trained from.
            reports: The cells' newest.
            newer: Floors that stand instead of those of the last steps, by cell.
        """
        alive = {report.cell: report for report in reports if report.head_version >= version - self._window}
        floors = {
            cell: known.pooled
            for cell, known in {**self._floors, **(newer or {})}.items()
            if cell not in alive or not known.outdated(alive[cell].incarnation)
        }
        return [
            _engine(cell, alive.get(cell), floors.get(cell, NOTHING), version) for cell in sorted({*alive, *floors})
        ]


def change_of_cause(before: Diagnosis | None, now: Diagnosis | None) -> str:
    """What to tell of a diagnosis that names another cause than the one before; empty where it does not."""
    if now is None or now.cause == (before.cause if before else "healthy"):
        return ""
    return f"{now.cause}: {now.why}"


def _engine(cell: str, report: OffsetReport | None, floor: DivergenceSummary, version: int) -> EngineFigures:
    if report is None:
        return EngineFigures(cell, version, None, floor)
    refused = report.refused_version
    return EngineFigures(
        cell,
        report.version if refused is None else refused,
        report.probe_difference_nats,
        floor,
        refused is not None,
    )


def _all_new(member: Trajectory, version: int) -> bool:
    """Whether the version trained from has sampled all tokens of a member."""
    return all(segment.version == version for segment in sampled_segments(member))
