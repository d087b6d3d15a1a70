"""How a run was steered, from its step records: leads, the share of its budget, and the causes named. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.records import Diagnosis, StepRecord
from driftline.tracking import metrics
from driftline.tracking.summary import mean


@dataclass(frozen=True, slots=True)
class Steered:
    """Leads are in groups; None is what was not recorded."""

    lead_first: int | None
    lead_last: int | None
    """The lead in HEAD while the last step's batch was awaited."""
    lead_mean: float | None
    effective_lead_mean: float | None
    """Of the lead that the batches' tokens really had."""
    budget_share_mean: float | None
    decisions: Mapping[str, int]
    """Why a controller chose the next lead -> steps."""
    diagnosis: Diagnosis | None
    """Of the last steps."""
    causes: Mapping[str, int]
    """Cause -> steps that were diagnosed so."""


def steered(records: Sequence[StepRecord]) -> Steered:
    """Sum up the steps of a run, in order. Records of before there was a diagnosis tell nothing."""
    told = [record for record in records if record.diagnosis is not None]
    return Steered(
        lead_first=told[0].lead_groups if told else None,
        lead_last=told[-1].lead_groups if told else None,
        lead_mean=mean([float(record.lead_groups) for record in told]),
        effective_lead_mean=mean([record.metrics[metrics.EFFECTIVE_LEAD_GROUPS] for record in told]),
        budget_share_mean=mean([record.metrics[metrics.BUDGET_SHARE] for record in told]),
        decisions=Counter(record.lead_why for record in told if record.lead_why),
        diagnosis=told[-1].diagnosis if told else None,
        causes=Counter(record.diagnosis.cause for record in told if record.diagnosis),
    )


def to_dict(found: Steered) -> dict[str, Any]:
    """The figures under their public names."""
    diagnosis = found.diagnosis
    return {
        "overlap": {
            "lead_groups": {"first": found.lead_first, "last": found.lead_last, "mean": found.lead_mean},
            "effective_lead_groups_mean": found.effective_lead_mean,
            "budget_share_mean": found.budget_share_mean,
            "decisions": dict(found.decisions),
        },
        "diagnosis": None
        if diagnosis is None
        else {
            "cause": diagnosis.cause,
            "why": diagnosis.why,
            "engine": diagnosis.engine,
            "figures": dict(diagnosis.figures),
            "steps_by_cause": dict(found.causes),
        },
    }


def rows(found: Steered) -> list[tuple[str, str]]:
    """Lines of the report's table."""
    if found.diagnosis is None:
        return []
    others = ", ".join(f"{steps} {cause}" for cause, steps in found.causes.items())
    return [
        (
            "lead in groups, first -> last / effective",
            f"{found.lead_first} -> {found.lead_last} / {found.effective_lead_mean:.1f}",
        ),
        ("divergence budget spent", f"{found.budget_share_mean:.0%}"),
        ("diagnosis of the last steps", f"{found.diagnosis.cause}: {found.diagnosis.why} (steps: {others})"),
    ]
