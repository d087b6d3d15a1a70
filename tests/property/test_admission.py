"""Laws of admission: more divergence never gains weight, and baselines do not depend on who is admitted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftline.divergence.admission import (
    Admission,
    AdmissionPolicy,
    Candidate,
    admit,
    admit_group,
)
from driftline.divergence.estimators import NOTHING, DivergenceSummary
from driftline.training.advantages import group_advantages

POLICY = AdmissionPolicy(
    max_lag_versions=8,
    down_weight_k3_nats=0.01,
    drop_k3_nats=0.1,
    down_weight_ess_fraction=0.8,
    drop_ess_fraction=0.4,
)


def summary(k3: float, ess: float) -> DivergenceSummary:
    return replace(NOTHING, tokens=10, k3=k3, ess_fraction=ess)


def candidate(k3: float = 0.0, ess: float = 1.0, *, lag: int = 0, valid: bool = True) -> Candidate:
    return Candidate(valid, lag, summary(k3, ess))


candidates = st.builds(
    Candidate,
    valid=st.booleans(),
    lag_max=st.integers(0, 12),
    divergence=st.one_of(st.none(), st.builds(summary, st.floats(0, 0.2), st.floats(0.01, 1))),
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (candidate(), Admission("keep", 1.0, "")),
        (candidate(0.01, 0.8, lag=8), Admission("keep", 1.0, "")),
        (candidate(0.04), Admission("down_weight", 0.25, "k3")),
        (candidate(0.0, 0.6), Admission("down_weight", 0.75, "ess")),
        (candidate(0.04, 0.6), Admission("down_weight", 0.25, "k3")),
        (candidate(0.011, 0.4), Admission("down_weight", 0.5, "ess")),
        (candidate(0.11), Admission("drop", 0.0, "k3")),
        (candidate(0.0, 0.39), Admission("drop", 0.0, "ess")),
        (candidate(0.11, 0.1, lag=9), Admission("drop", 0.0, "age")),
        (Candidate(True, 0, None), Admission("drop", 0.0, "not_finite")),
        (candidate(math.nan), Admission("drop", 0.0, "not_finite")),
        (candidate(math.inf), Admission("drop", 0.0, "not_finite")),
        (candidate(valid=False), Admission("drop", 0.0, "invalid")),
    ],
)
def test_verdicts_by_hand(found: Candidate, expected: Admission):
    got = admit(found, POLICY)
    assert (got.verdict, got.reason) == (expected.verdict, expected.reason)
    assert got.weight == pytest.approx(expected.weight)


def test_without_limits_only_age_drops():
    policy = AdmissionPolicy(max_lag_versions=2)
    assert admit(candidate(50.0, 0.001, lag=2), policy) == Admission("keep", 1.0, "")
    assert admit(candidate(lag=3), policy).reason == "age"


@given(found=candidates)
def test_weight_verdict_and_reason_agree(found: Candidate):
    got = admit(found, POLICY)
    assert 0 <= got.weight <= 1
    assert (got.verdict == "keep") == (got.weight == 1) == (got.reason == "")
    assert (got.verdict == "drop") == (got.weight == 0)


@given(k3=st.floats(0, 0.2), more=st.floats(0, 0.2), ess=st.floats(0.01, 1), less=st.floats(0, 1))
def test_more_divergence_never_gains_weight(k3: float, more: float, ess: float, less: float):
    weight = admit(candidate(k3, ess), POLICY).weight
    assert admit(candidate(k3 + more, ess), POLICY).weight <= weight
    assert admit(candidate(k3, ess * less), POLICY).weight <= weight
    assert admit(candidate(k3, ess, lag=9), POLICY).weight == 0


@given(members=st.lists(candidates, min_size=1, max_size=8))
def test_members_are_judged_one_by_one(members: list[Candidate]):
    found = admit_group(members, POLICY)
    assert found.members == tuple(admit(member, POLICY) for member in members)
    assert found.given_up == (sum(member.weight > 0 for member in found.members) < 2)
    assert admit_group(members[::-1], POLICY).members == found.members[::-1]
    if found.given_up:
        assert set(found.weights) <= {0.0}


def test_the_baseline_is_that_of_all_valid_members():
    """The far member is dropped; the others keep the advantages that its reward gave them."""
    members = [candidate(), candidate(), candidate(k3=5.0), candidate(valid=False)]
    rewards, valid = torch.tensor([1.0, 0.0, 0.0, 9.0]), torch.tensor([1, 1, 1, 0])
    before = group_advantages(rewards, valid, "dr_grpo")
    weighted = before * torch.tensor(admit_group(members, POLICY).weights, dtype=torch.float64)
    assert weighted.tolist() == pytest.approx([2 / 3, -1 / 3, 0.0, 0.0])


def test_a_group_of_one_admitted_member_is_given_up():
    """AReaL#1419: what is left of a group is not trained on as if it were whole."""
    found = admit_group([candidate(), candidate(k3=5.0), candidate(lag=9)], POLICY)
    assert found.given_up
    assert found.weights == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"down_weight_k3_nats": 0.2, "drop_k3_nats": 0.1},
        {"down_weight_k3_nats": 0.0},
        {"down_weight_ess_fraction": 0.5, "drop_ess_fraction": 0.6},
        {"down_weight_ess_fraction": 1.5},
    ],
)
def test_limits_that_contradict_one_another_are_refused(fields: dict[str, float]):
    with pytest.raises(ValueError, match="must"):
        AdmissionPolicy(max_lag_versions=8, **fields)
