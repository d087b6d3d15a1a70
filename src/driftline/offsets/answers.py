"""From a run as it was read to where it stands: offset, ledger, single trajectories. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from driftline.measured import Diagnosis, DivergenceSummary, MemberUse, pooled
from driftline.offsets.figures import Admitted, TokenDivergence, pooled_tokens
from driftline.offsets.followed import Latest
from driftline.offsets.models import (
    Counted,
    DiagnosisAnswer,
    Engine,
    Ledger,
    Offset,
    RunItem,
    Runs,
    SegmentAnswer,
    TokenDivergenceAnswer,
    TrajectoryAnswer,
)
from driftline.offsets.reader import RunEntry, RunView
from driftline.records import GiveUp, GroupUse, OffsetReport, StepRecord, TokenLedger, Trajectory
from driftline.tracking import metrics

RECENT_STEPS = 8
"""Steps over which an engine's divergence is taken."""
SILENT_S = 15.0
"""A heartbeat older than this is of an engine that is gone, or stuck."""
NOT_SCORED = "not measured: its record was written before members were scored"


def runs(found: Latest[tuple[RunEntry, ...]], limit: int) -> Runs:
    """The newest runs."""
    return Runs(runs=[_item(entry) for entry in found.value[:limit]], stale=found.stale, age_s=found.age_s)


def _item(entry: RunEntry) -> RunItem:
    head = entry.head
    state = "unreadable" if entry.trouble else head.state if head is not None else "not started"
    return RunItem(
        run=entry.run,
        created_unix=entry.created_unix,
        state=state,
        reason=entry.trouble or (head.reason if head is not None else ""),
        step=head.step if head is not None else None,
        version=head.version.number if head is not None and head.version is not None else None,
        lead_groups=head.lead_groups if head is not None else None,
    )


def offset(found: Latest[RunView], now: float) -> Offset:
    """Where a run stands, at `now` in Unix seconds."""
    view = found.value
    head, last = view.head, view.steps[-1] if view.steps else None
    return Offset(
        run=view.run,
        state=head.state if head is not None else "not started",
        reason=head.reason if head is not None else "",
        observed_unix=view.observed_unix,
        age_s=found.age_s,
        stale=found.stale,
        trouble=found.trouble,
        epoch=head.epoch if head is not None else None,
        step=head.step if head is not None else None,
        steps_planned=_whole(parameter(view, "training", "steps")),
        version=view.version,
        committed_unix=last.committed_unix if last is not None else None,
        lead_groups=head.lead_groups if head is not None else None,
        controller=_word(parameter(view, "overlap", "controller")),
        lead_why=last.lead_why if last is not None else "",
        budget_k3_nats=budget(view),
        diagnosis=diagnosis(last.diagnosis) if last is not None else None,
        metrics=last.metrics() if last is not None else {},
        engines=[engine(view, report, now) for report in view.engines],
    )


def engine(view: RunView, report: OffsetReport, now: float) -> Engine:
    """What one engine is generating with."""
    recent = view.steps[-RECENT_STEPS:]
    age_s = max(0.0, now - report.heartbeat_unix)
    floors = [
        step.floor_by_cell[report.cell]
        for step in recent
        if report.cell in step.floor_by_cell
        and step.incarnations.get(report.cell, report.incarnation) == report.incarnation
    ]
    return Engine(
        engine=report.cell,
        incarnation=report.incarnation,
        version=report.version,
        lag_versions=lag_versions(view, report),
        lag_seconds=lag_seconds(view, report, now),
        divergence=tokens(pooled_tokens(step.by_cell[report.cell] for step in recent if report.cell in step.by_cell)),
        floor_k3_nats=finite(pooled(floors).k3) if any(found.tokens for found in floors) else None,
        probe_difference_nats=finite(report.probe_difference_nats),
        refused_version=report.refused_version,
        heartbeat_unix=report.heartbeat_unix,
        heartbeat_age_s=age_s,
        alive=age_s <= SILENT_S,
        applied_unix=report.applied_unix,
        pause_s=report.pause_s,
        running_episodes=report.running_episodes,
        waiting_episodes=report.waiting_episodes,
        generated_tokens=report.generated_tokens,
    )


def lag_versions(view: RunView, report: OffsetReport) -> int | None:
    """Versions that an engine is behind HEAD, as the store says now: an engine may not have seen HEAD lately."""
    return None if view.version is None else max(0, view.version - report.version)


def lag_seconds(view: RunView, report: OffsetReport, now: float) -> float | None:
    """Seconds since the first version that an engine lacks was committed; 0 while it lacks none."""
    lag = lag_versions(view, report)
    if not lag:
        return None if lag is None else 0.0
    for step in reversed(view.steps):
        if step.version_out == report.version + 1:
            return max(0.0, now - step.committed_unix)
        if step.version_out <= report.version:
            break
    return None


def ledger(view: RunView) -> Ledger:
    """What became of every token sampled so far, as the last record says."""
    found = view.latest.ledger if view.latest is not None else None
    uneven = [step.step for step in view.steps if step.value(metrics.LEDGER_IMBALANCE)]
    return Ledger(
        run=view.run,
        step=view.latest.step if view.latest is not None else None,
        measured=found is not None,
        generated=found.generated if found is not None else None,
        terms=found.terms if found is not None else {},
        by_reason=_by_reason(found) if found is not None else {},
        imbalance=found.imbalance if found is not None else None,
        balances=found.imbalance == 0 if found is not None else None,
        unbalanced_steps=uneven[-100:],
        admission=[
            Counted(verdict=verdict, reason=reason, members=all_of.members, tokens=all_of.tokens)
            for (verdict, reason), all_of in _added(step.admission for step in view.steps).items()
        ],
        given_up=[
            Counted(verdict="given up", reason=reason, members=all_of.members, tokens=all_of.tokens)
            for reason, all_of in _added(step.give_ups for step in view.steps).items()
        ],
    )


def _by_reason(found: TokenLedger) -> dict[str, dict[str, int]]:
    """Terms that the ledger divides further."""
    divided = [field.name for field in fields(found) if field.name.endswith("_by")]
    return {name.removesuffix("_by"): dict(getattr(found, name)) for name in divided}


def _added(parts: Iterable[Mapping[Any, Admitted]]) -> dict[Any, Admitted]:
    sums: dict[Any, Admitted] = {}
    for part in parts:
        for key, counted in part.items():
            known = sums.get(key, Admitted(0, 0))
            sums[key] = Admitted(known.members + counted.members, known.tokens + counted.tokens)
    return dict(sorted(sums.items()))


def find_use(record: StepRecord, group: int) -> GroupUse | GiveUp | None:
    """How a group entered a step, or that it was given up."""
    entries: Sequence[GroupUse | GiveUp] = [*record.groups, *record.give_ups]
    return next((entry for entry in entries if entry.group == group), None)


def find_member(entry: GroupUse | GiveUp, member: int) -> MemberUse | None:
    """What a record says of a member."""
    return next((use for use in entry.uses if use.member == member), None)


def trajectory(
    record: StepRecord, entry: GroupUse | GiveUp, member: int, use: MemberUse | None, found: Trajectory | None
) -> TrajectoryAnswer:
    """A member's segments: with their divergence from the record, or bare from its object.

    Args:
        record: The step that trained the group or gave it up.
        entry: The group in it.
        member: The member's number.
        use: What the record says of the member, if anything.
        found: The trajectory itself, where the record says nothing.
    """
    version = record.version_in.number
    measured = use is not None and bool(use.segments)
    return TrajectoryAnswer(
        run=record.run,
        group=entry.group,
        member=member,
        step=record.step,
        trained_version=version,
        given_up=entry.reason if isinstance(entry, GiveUp) else "",
        task_id=entry.task_id,
        key=entry.key,
        cell=use.cell if use is not None else found.cell if found is not None else "",
        verdict=use.verdict if use is not None else None,
        reason=use.reason if use is not None else None,
        weight=finite(use.weight) if use is not None else None,
        sampled_tokens=use.sampled_tokens if use is not None else found.sampled_tokens if found is not None else None,
        masked_tokens=use.masked_tokens if use is not None else None,
        seconds=use.seconds if use is not None else found.finished_unix - found.started_unix if found else None,
        measured=measured,
        note="" if measured else "not measured: it was not scored" if use is not None else NOT_SCORED,
        divergence=tokens(pooled_tokens(use.segments)) if use is not None else None,
        segments=_scored(use, version) if use is not None else _bare(found, version) if found is not None else [],
    )


def _scored(use: MemberUse, version: int) -> list[SegmentAnswer]:
    return [
        SegmentAnswer(
            start=part.start,
            version=part.version,
            lag=max(0, version - part.version),
            tokens=part.tokens,
            k1_nats=finite(part.k1),
            k3_nats=finite(part.k3),
            ess_fraction=finite(part.ess_fraction),
        )
        for part in use.segments
    ]


def _bare(found: Trajectory, version: int) -> list[SegmentAnswer]:
    """Segments of a trajectory that was not scored; those without sampled tokens are no generation."""
    starts = [segment.start for segment in found.segments]
    ends = [*starts[1:], len(found.token_ids)]
    return [
        SegmentAnswer(
            start=segment.start,
            version=segment.version,
            lag=max(0, version - segment.version),
            tokens=sum(found.loss_mask[segment.start : end]),
            k1_nats=None,
            k3_nats=None,
            ess_fraction=None,
        )
        for segment, end in zip(found.segments, ends, strict=True)
        if any(found.loss_mask[segment.start : end])
    ]


def diagnosis(found: Diagnosis | None) -> DiagnosisAnswer | None:
    """A diagnosis, as it is answered."""
    if found is None:
        return None
    figures = {name: finite(value) for name, value in found.figures.items()}
    return DiagnosisAnswer(cause=found.cause, why=found.why, figures=figures, engine=found.engine)


def tokens(found: TokenDivergence | DivergenceSummary | None) -> TokenDivergenceAnswer | None:
    """Divergence of some tokens, as it is answered; None without tokens."""
    if found is None or not found.tokens:
        return None
    return TokenDivergenceAnswer(
        tokens=found.tokens,
        k1_nats=finite(found.k1),
        k3_nats=finite(found.k3),
        ess_fraction=finite(found.ess_fraction),
    )


def budget(view: RunView) -> float | None:
    """The divergence budget of a run, in nats a token; None where it was started without one."""
    return finite(parameter(view, "overlap", "budget_k3_nats"))


def parameter(view: RunView, section: str, name: str) -> Any:
    """A parameter of a run, None where it was started without it."""
    found: Any = view.description.parameters.get(section)
    return cast(dict[str, Any], found).get(name) if isinstance(found, dict) else None


def finite(value: float | None) -> float | None:
    """A number that JSON has; None for NaN and infinities."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
