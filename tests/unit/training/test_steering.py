"""What a run is steered by: figures of a batch, the next lead, the diagnosis; a restart changes none of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from driftline.divergence.admission import AdmissionPolicy
from driftline.divergence.diagnosis import CAUSES
from driftline.measured import NOTHING, DivergenceSummary, pooled
from driftline.params import RunParameters
from driftline.records import Group, OffsetReport, StepRecord
from driftline.tracking import metrics
from driftline.training.batching import Judged, judge
from driftline.training.members import MemberScore
from driftline.training.steering import (
    FLOOR_MEMORY_STEPS,
    Steering,
    batch_divergence,
    change_of_cause,
)
from tests.support.records import step_record
from tests.support.training import outcome, parameters, trajectory

BUDGET = 1e-3


def controlled(**overlap: Any) -> RunParameters:
    return parameters(
        rollout={"groups_per_step": 4},
        overlap={
            "controller": "divergence", "lead_groups": 4, "max_lag_versions": 8, "budget_k3_nats": BUDGET, **overlap
        },
    )  # fmt: skip


def summary(k3: float, tokens: int = 1000, error: float = 0.0) -> DivergenceSummary:
    return replace(NOTHING, tokens=tokens, k3=k3, k3_error=error)


def record(
    step: int,
    lead: int = 4,
    *,
    by_lag: Mapping[int, DivergenceSummary] | None = None,
    floors: Mapping[str, DivergenceSummary] | None = None,
) -> StepRecord:
    """A step whose k3 grows with the square of its lag, which is its lead."""
    lag = lead / 4
    found = {0: summary(1e-8), max(1, round(lag)): summary(2e-4 * lag**2)} if by_lag is None else by_lag
    k3 = sum(one.k3 * one.tokens for one in found.values()) / max(1, sum(one.tokens for one in found.values()))
    return replace(
        step_record(step, None),
        lead_groups=lead,
        by_lag=found,
        floor_by_cell={"c0": summary(1e-8)} if floors is None else floors,
        metrics={metrics.K3: k3, metrics.LAG_STEPS_MEAN: lag, metrics.LAG_STEPS_MAX: lag + 3},
    )


def report(cell: str = "c0", head_version: int = 99, **changes: Any) -> OffsetReport:
    base = OffsetReport(
        "r", cell, "i1", head_version, head_version, 0.0, 0.0, 0, 0, 0, 0.0, probe_difference_nats=1e-6
    )
    return replace(base, **changes)


def follow(steering: Steering, records: Sequence[StepRecord], reports: Sequence[OffsetReport] = ()) -> StepRecord:
    """The last record as judged."""
    judged = [steering.judge(one, reports)[0] for one in records]
    return judged[-1]


def test_a_batch_divided_by_environment_and_cell():
    members = (
        trajectory(0, 0, segments=((0, 5),)),
        replace(trajectory(0, 1, segments=((0, 5),)), environment="dice/v1", cell="c1"),
        trajectory(0, 2, reward=None, status="env_error"),
        trajectory(0, 3, segments=((0, 4), (2, 5))),
        replace(trajectory(0, 4, segments=((0, 4), (3, 5)), mask=(False, False, False, True)), cell="c1"),
        trajectory(0, 5, segments=((0, 6),)),
    )
    k3 = [1e-6, 3e-6, 1.0, 5e-6, 2.0]
    statistics = replace(
        outcome().statistics, by_lag={0: summary(1e-6)}, by_sequence=tuple(summary(value, 2) for value in k3)
    )
    found = batch_divergence([Group(0, "task-0", "v1", members)], statistics, version=5)
    assert found.by_lag == {0: summary(1e-6)}
    assert {name: (one.tokens, one.k3) for name, one in found.by_environment.items()} == {
        "dice/v1": (2, 3e-6),
        "pointer_chase/v1": (8, pytest.approx((1e-6 + 1.0 + 5e-6 + 2.0) / 4)),
    }
    assert {name: (one.tokens, one.k3) for name, one in found.floor_by_cell.items()} == {
        "c0": (2, 1e-6),
        "c1": (4, pytest.approx(4e-6)),
    }, "without members that any other version has a token in, older or newer"


def test_statistics_without_sequences_tell_lags_apart_alone():
    members = (trajectory(0, 0), trajectory(0, 1))
    found = batch_divergence([Group(0, "t", "v1", members)], outcome().statistics, 0)
    assert (found.by_environment, found.floor_by_cell) == ({}, {})
    statistics = replace(outcome().statistics, by_sequence=(summary(1.0),))
    with pytest.raises(ValueError, match="zip"):
        batch_divergence([Group(0, "t", "v1", members)], statistics, 0)


def test_a_fixed_lead_stays_and_gives_no_reason():
    steering = Steering([], parameters())
    for step in range(1, 20):
        judged, lead = steering.judge(record(step, 2, by_lag={2: summary(1.0)}), ())
        assert (lead, judged.lead_why) == (2, "")


def run_controlled(params: RunParameters, steps: int, restart_at: int | None = None) -> list[StepRecord]:
    """Steps whose k3 follows the lead."""
    steering, lead, done = Steering([], params), params.overlap.lead_groups, list[StepRecord]()
    for step in range(1, steps + 1):
        if restart_at == step:
            steering = Steering(done, params)
        judged, lead = steering.judge(record(step, lead), [report()])
        done.append(judged)
    return done


def test_the_lead_comes_to_where_the_budget_is_spent_and_says_why():
    done = run_controlled(controlled(), 60)
    leads = [one.lead_groups for one in done]
    # k3 of a batch is half of 2e-4 (lead / 4)^2: 0.7 to 1 of the budget lies at leads of 10.6 to 12.6.
    assert 11 <= leads[-1] <= 12
    assert len(set(leads[-10:])) == 1
    assert {one.lead_why for one in done} >= {"waiting", "below budget", "within budget"}
    assert done[-1].metrics[metrics.LEAD_GROUPS] == leads[-1] == done[-1].metrics[metrics.EFFECTIVE_LEAD_GROUPS]
    assert done[-1].metrics[metrics.BUDGET_SHARE] == pytest.approx(1e-4 * (leads[-1] / 4) ** 2 / BUDGET, rel=1e-3)


@pytest.mark.parametrize("restart_at", [2, 9, 17, 30])
def test_a_restarted_trainer_decides_as_the_first_one_would(restart_at: int):
    """AReaL: after a resume the count starts from zero. Here all of it is read from the records."""
    assert run_controlled(controlled(), 40, restart_at) == run_controlled(controlled(), 40)


@pytest.mark.parametrize(
    ("limits", "lead", "most"),
    [
        ({"highest_groups": 6}, 6, 2),
        ({"lowest_groups": 2, "step_groups": 1, "highest_groups": 9}, 9, 1),
        ({"max_lag_versions": 1}, 4, 4),
    ],
)
def test_the_parameters_are_the_limits(limits: dict[str, Any], lead: int, most: int):
    done = run_controlled(controlled(**limits), 60)
    leads = [one.lead_groups for one in done]
    assert leads[-1] == lead
    assert max(b - a for a, b in pairwise(leads)) <= most


def test_the_controller_never_goes_below_its_lowest_lead():
    steering = Steering([], controlled(lowest_groups=3))
    lead = 4
    for step in range(1, 60):
        _, lead = steering.judge(record(step, lead, by_lag={1: summary(1.0)}), ())
        assert lead >= 3
    assert lead == 3


def test_the_floor_of_the_controller_is_the_last_that_was_measured():
    """What no lead takes away is not charged to the lead: it is cut by half of what lies above the floor."""

    def cut(floor: float) -> int:
        steering, lead = Steering([], controlled(lead_groups=8)), 8
        for step in range(1, 8):
            floors = {"c0": summary(floor)} if step == 1 else {}
            _, lead = steering.judge(record(step, 8, by_lag={2: summary(1.2e-3)}, floors=floors), ())
        return lead

    assert (cut(0.0), cut(5e-4)) == (5, 4)


def test_the_causes_are_named_from_records_and_reports():
    params = controlled()
    healthy = follow(Steering([], params), [record(n) for n in range(1, 5)], [report()])
    assert healthy.diagnosis is not None
    assert healthy.diagnosis.cause == "healthy"
    assert healthy.metrics[metrics.CAUSE] == CAUSES.index("healthy") == 0
    assert healthy.metrics[metrics.FLOOR_K3] == pytest.approx(1e-8)
    assert healthy.diagnosis.figures["probe_difference_max_nats"] == 1e-6

    def last(reports: Sequence[OffsetReport] = (), **changes: Any) -> tuple[str, str]:
        found = follow(Steering([], params), [record(n, **changes) for n in range(1, 5)], reports).diagnosis
        assert found is not None
        return found.cause, found.engine

    assert last(by_lag={8: summary(1e-2)}) == ("staleness", "")
    assert last(floors={"c0": summary(1e-4), "c1": summary(1e-4)}) == ("engine mismatch", "")
    assert last(floors={"c0": summary(1e-9), "c1": summary(1e-4)}) == ("failed weight sync", "c1")
    refused = report("c1", refused_version=3, probe_difference_nats=0.02)
    assert last([report(), refused]) == ("failed weight sync", "c1")
    assert last([refused]) == ("failed weight sync", "c1"), "the only engine, and off by little"
    assert last([replace(refused, head_version=-2)]) == ("healthy", ""), "a cell that is long gone"
    assert last([report(probe_difference_nats=0.02)]) == ("engine mismatch", "")


def test_a_diagnosis_looks_at_the_last_steps():
    steering = Steering([], controlled())
    assert follow(steering, [record(n, by_lag={8: summary(1e-2)}) for n in range(1, 5)]).metrics[metrics.CAUSE] == 2
    causes = [steering.judge(record(n), ())[0].metrics[metrics.CAUSE] for n in range(5, 10)]
    assert causes == [2, 2, 2, 0, 0], "k3 of the window falls below the budget with the last stale step"


def test_a_floor_stands_until_a_newer_one_is_measured_but_not_for_ever():
    stuck = {"c0": summary(1e-9), "c1": summary(1e-4)}
    steering = Steering([], controlled())
    done = [steering.judge(record(1, floors=stuck), ())[0]]
    done += [steering.judge(record(n, floors={}), ())[0] for n in range(2, FLOOR_MEMORY_STEPS + 3)]
    causes = [one.diagnosis.cause for one in done if one.diagnosis]
    assert causes == ["failed weight sync"] * FLOOR_MEMORY_STEPS + ["healthy"] * 2
    mended = Steering(done[:5], controlled())
    good = {"c0": summary(1e-9), "c1": summary(1e-9)}
    assert follow(mended, [record(n, floors=good) for n in range(6, 10)]).metrics[metrics.CAUSE] == 0


def far_group(number: int, *, version: int, by_version: Mapping[int, float], cell: str = "c0") -> Judged:
    """A group at `version`, each of whose members has 100 tokens of each of these versions, with this k3."""
    segments = tuple((index, sampled) for index, sampled in enumerate(by_version))
    member = replace(trajectory(number, 0, mask=(True,) * 4, segments=segments), cell=cell)
    parts = {version - sampled: summary(k3, 100) for sampled, k3 in by_version.items()}
    score = MemberScore(pooled(parts.values()), parts)
    return judge(
        Group(number, "t", "v1", (member, replace(member, member=1))), (score, score), version=version, policy=FAR
    )


FAR = AdmissionPolicy(8, drop_k3_nats=1.0)


def test_groups_that_no_step_uses_name_the_cause_by_themselves():
    """A total mismatch, or a lead that is far too deep, lets no step be committed that would say so."""

    def cause(judged: Sequence[Judged], reports: Sequence[OffsetReport] = ()) -> tuple[str, str] | None:
        found = steering.diagnose_unused(judged, reports)
        assert found is None or steering.diagnosis is found
        return (found.cause, found.engine) if found else None

    steering = Steering([record(n) for n in range(1, 5)], controlled())
    mismatch = far_group(9, version=5, by_version={5: 4.0})
    stale = far_group(9, version=5, by_version={1: 4.0, 5: 2.0})
    assert cause([mismatch, mismatch]) == ("engine mismatch", ""), "the floor of c0 is that of now"
    assert cause([stale, stale]) == ("staleness", "")
    assert cause([stale, far_group(8, version=5, by_version={5: 4.0}, cell="c1")]) == ("failed weight sync", "c1")
    assert steering.diagnosis is not None
    assert steering.diagnosis.figures["k3_nats"] == pytest.approx((4.0 + 2.0 + 4.0) / 3)
    far_off = report("c2", refused_version=5, probe_difference_nats=0.3)
    assert cause([mismatch], [far_off]) == ("failed weight sync", "c2")
    little = replace(mismatch, score=(None, MemberScore(summary(4.0, 199), {0: summary(4.0, 199)})))
    assert cause([little]) is None
    nothing = replace(mismatch, score=(MemberScore(summary(math.nan, 900), {0: summary(math.nan, 900)}), None))
    assert cause([nothing]) is None
    assert cause([replace(mismatch, score=None)]) is None
    assert cause([]) is None


def test_news_are_changes_of_the_cause_alone():
    stale = follow(Steering([], controlled()), [record(1, by_lag={8: summary(1e-2)})]).diagnosis
    healthy = follow(Steering([], controlled()), [record(1)]).diagnosis
    assert stale is not None
    assert healthy is not None
    assert change_of_cause(None, healthy) == change_of_cause(healthy, healthy) == change_of_cause(stale, stale) == ""
    assert change_of_cause(None, stale) == f"staleness: {stale.why}" == change_of_cause(healthy, stale)
    assert change_of_cause(stale, healthy).startswith("healthy: k3 is")


def test_what_is_no_number_is_no_health():
    judged = follow(Steering([], controlled()), [record(1, floors={"c0": summary(math.nan, error=math.nan)})])
    assert judged.metrics[metrics.CAUSE] == CAUSES.index("engine mismatch")
