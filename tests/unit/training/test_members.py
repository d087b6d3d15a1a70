"""Members on their way into a step: who counts, with which weight, and what a record says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from driftline.divergence.admission import AdmissionPolicy, admit_group
from driftline.measured import NOTHING, DivergenceSummary
from driftline.params import RunParameters
from driftline.records import Group, GroupUse
from driftline.training.batching import judge
from driftline.training.members import (
    MemberScore,
    batch_weights,
    candidates,
    facts_of,
    in_batch,
    member_uses,
    policy_of,
    scored,
    stepped,
)
from driftline.training.reporting import group_use
from tests.support.training import group, outcome, trajectory


def summary(k3: float, tokens: int = 2) -> DivergenceSummary:
    return replace(NOTHING, tokens=tokens, k3=k3)


def use_of(one: Group, version: int = 0) -> GroupUse:
    return group_use(judge(one, None, version=version, policy=AdmissionPolicy(max_lag_versions=8)))


def test_the_policy_is_the_section_of_the_parameters():
    params = RunParameters.model_validate({"admission": {"drop_k3_nats": 2.0, "drop_ess_fraction": None}})
    assert policy_of(params) == AdmissionPolicy(8, 1.0, 2.0, 0.1, None)
    assert policy_of(params).limits_divergence
    assert not AdmissionPolicy(8).limits_divergence


def test_candidates_are_valid_as_they_ended_and_measured_where_they_are_numbers():
    members = (
        trajectory(0, 0, segments=((0, 3), (2, 5))),
        trajectory(0, 1, reward=None, status="timeout"),
        trajectory(0, 2, logprobs=(0.0, -math.inf, 0.0, -0.5)),
    )
    found = candidates(facts_of(Group(0, "t", "v1", members)), version=5)
    assert [(one.valid, one.lag_max, one.divergence is None) for one in found] == [
        (True, 2, False),
        (False, 5, False),
        (True, 5, True),
    ]
    measured = scored(found, (MemberScore(summary(0.5)), None, None))
    assert [one.divergence for one in measured] == [summary(0.5), NOTHING, None]
    assert scored(found, (MemberScore(summary(math.inf)), None, None))[0].divergence is None


def test_what_the_step_measured_goes_to_its_member_by_what_masked_it():
    one = group(0, [1, None, 0, 1])
    uses = (use_of(one),)
    found = replace(
        outcome().statistics,
        by_sequence=(summary(0.1), summary(0.2), summary(0.3)),
        by_sequence_and_lag=({0: summary(0.1)}, {0: summary(0.2)}, {0: summary(0.3)}),
        masked_by_sequence=(0, 2, 1),
        negative_by_sequence=(0, 0, 1),
        trained_by_sequence=(2, 0, 1),
    )
    (use,) = stepped(uses, (one,), found, 0)
    assert [member.masked_by for member in use.uses] == [{}, {}, {"correction": 2}, {"negative sequence": 1}]
    assert [member.masked_tokens for member in use.uses] == [0, 0, 2, 1]
    assert [member.trained_tokens for member in use.uses] == [2, 0, 0, 1]
    assert [[part.k3 for part in member.segments] for member in use.uses] == [[0.1], [], [0.2], [0.3]]
    with pytest.raises(AssertionError, match="the batch is made of the uses' counted members"):
        stepped(uses, (one,), replace(found, by_sequence=(*found.by_sequence, NOTHING)), 0)


def test_segments_are_told_apart_by_version_and_a_first_token_is_in_none():
    member = trajectory(mask=(True, True, False, True), segments=((0, 1), (1, 3), (3, 4)))
    one = Group(0, "t", "v1", (member, trajectory(0, 1, segments=((0, 4),))))
    score = (MemberScore(summary(0.3), {1: summary(0.5, 1), 0: summary(0.1, 1)}), MemberScore(summary(0.0)))
    uses = member_uses(one, admit_group(candidates(facts_of(one), 4), AdmissionPolicy(8)), score, version=4)
    assert [(part.start, part.version, part.tokens, part.k3) for part in uses[0].segments] == [
        (1, 3, 1, 0.5),
        (3, 4, 1, 0.1),
    ]


def test_a_lag_beyond_all_that_are_told_apart_is_that_of_the_oldest_version():
    member = trajectory(mask=(False, True, True, True), segments=((0, 1), (2, 2), (3, 9)))
    one = Group(0, "t", "v1", (member, member))
    score = MemberScore(summary(0.3), {3: summary(0.5, 2), 0: summary(0.1, 1)})
    uses = member_uses(one, admit_group(candidates(facts_of(one), 9), AdmissionPolicy(99)), (score, score), version=9)
    assert [(part.start, part.version, part.tokens) for part in uses[0].segments] == [(0, 1, 2), (3, 9, 1)]


def test_weights_come_from_the_record_and_from_nothing_else():
    one = group(0, [1, 0, None, 1])
    use = use_of(one)
    lowered = replace(use, uses=(replace(use.uses[0], weight=0.25), *use.uses[1:]))
    assert batch_weights([lowered], [one]) == {0: (0.25, 1.0, None, 1.0)}
    assert batch_weights([replace(use, weight=0.0)], [one]) == {0: (0.0, 0.0, None, 0.0)}
    before_admission = replace(use, uses=())
    assert batch_weights([before_admission], [one]) == {0: (1.0, 1.0, None, 1.0)}
    assert [[m.member for m in found.trajectories] for found in in_batch([use], [one])] == [[0, 1, 3]]
