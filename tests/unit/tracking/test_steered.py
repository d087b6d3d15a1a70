"""How a run was steered, in its report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.measured import Cause, Diagnosis
from driftline.records import StepRecord
from driftline.tracking import metrics
from driftline.tracking.steered import rows, steered, to_dict
from tests.support.records import step_record


def record(step: int, lead: int, cause: Cause = "healthy", why: str = "within budget") -> StepRecord:
    values = {metrics.EFFECTIVE_LEAD_GROUPS: lead / 2, metrics.BUDGET_SHARE: 0.1 * step}
    diagnosis = Diagnosis(cause, f"why {step}", {"k3_nats": 1e-3}, "c1" if cause == "failed weight sync" else "")
    return replace(step_record(step, None), lead_groups=lead, lead_why=why, diagnosis=diagnosis, metrics=values)


def test_leads_decisions_and_causes_of_a_run():
    found = steered(
        [record(1, 4, why="waiting"), record(2, 4), record(3, 6, "staleness"), record(4, 2, "failed weight sync")]
    )
    assert to_dict(found) == {
        "overlap": {
            "lead_groups": {"first": 4, "last": 2, "mean": 4.0},
            "effective_lead_groups_mean": 2.0,
            "budget_share_mean": pytest.approx(0.25),
            "decisions": {"waiting": 1, "within budget": 3},
        },
        "diagnosis": {
            "cause": "failed weight sync",
            "why": "why 4",
            "engine": "c1",
            "figures": {"k3_nats": 1e-3},
            "steps_by_cause": {"healthy": 2, "staleness": 1, "failed weight sync": 1},
        },
    }
    assert rows(found) == [
        ("lead in groups, first -> last / effective", "4 -> 2 / 2.0"),
        ("divergence budget spent", "25%"),
        (
            "diagnosis of the last steps",
            "failed weight sync: why 4 (steps: 2 healthy, 1 staleness, 1 failed weight sync)",
        ),
    ]


def test_a_run_without_steps_or_of_before_there_was_a_diagnosis_tells_nothing():
    for records in ([], [step_record(1, None)]):
        found = steered(records)
        assert rows(found) == []
        assert to_dict(found)["diagnosis"] is None
        assert to_dict(found)["overlap"]["lead_groups"] == {"first": None, "last": None, "mean": None}
