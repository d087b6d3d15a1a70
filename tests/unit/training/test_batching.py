"""Which groups make a batch, which are given up, and when the run has failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.divergence.admission import AdmissionPolicy
from driftline.measured import NOTHING
from driftline.records import Group
from driftline.training.batching import BatchRule, Decision, Judged, decide, judge
from driftline.training.members import GroupScore, MemberScore
from driftline.training.segments import sampled_segments
from tests.support.training import group, trajectory

RULE = BatchRule(groups_per_step=2, policy=AdmissionPolicy(max_lag_versions=2), failed_groups=2)
NEAR = AdmissionPolicy(2, down_weight_k3_nats=0.1, drop_k3_nats=1.0, drop_ess_fraction=0.1)


def decided(finished: list[Group], *, version: int = 0, failed_before: int = 0) -> Decision:
    judged = [judge(one, None, version=version, policy=RULE.policy) for one in finished]
    return decide(judged, failed_before=failed_before, rule=RULE)


def numbers(found: tuple[Judged, ...]) -> list[int]:
    return [judged.group.number for judged in found]


def score(*k3s: float, ess: float = 1.0) -> GroupScore:
    return tuple(MemberScore(replace(NOTHING, tokens=2, k3=k3, ess_fraction=ess)) for k3 in k3s)


def test_the_lowest_numbered_finished_groups_make_the_batch():
    found = decided([group(n, [1, 0]) for n in (7, 3, 5)])
    assert numbers(found.batch) == [3, 5]
    assert numbers(found.waiting) == [7]
    assert found.give_ups == ()


def test_too_few_groups_wait():
    found = decided([group(4, [1, 0])])
    assert found.batch == ()
    assert numbers(found.waiting) == [4]


def test_a_group_without_variance_keeps_its_place():
    assert numbers(decided([group(0, [1, 1]), group(1, [1, 0])]).batch) == [0, 1]


def test_one_valid_member_is_too_few():
    """AReaL#1419, prime-rl#2585: partial groups."""
    found = decided([group(0, [1, None, None]), group(1, [1, 0, None]), group(2, [0, 1])])
    assert numbers(found.batch) == [1, 2]
    (give_up,) = found.give_ups
    assert give_up.group == 0
    assert give_up.reason == "too few valid members: 1 of 3 (2 x env_error: boom)"
    assert give_up.sampled_tokens == 6


@pytest.mark.parametrize(("version", "kept"), [(2, True), (3, False)])
def test_a_group_whose_oldest_token_is_beyond_the_limit_is_given_up(version: int, kept: bool):
    found = decided([group(0, [1, 0], version=0)], version=version)
    assert (found.give_ups == ()) == kept
    if not kept:
        reason = "stale: 2 of 2 members are too old, by up to 3 versions, limit overlap.max_lag_versions 2"
        assert found.give_ups[0].reason == reason


def test_only_segments_with_sampled_tokens_age_a_group():
    member = trajectory(mask=(False, False, True, True), segments=((0, 1), (2, 5)))
    assert [segment.version for segment in sampled_segments(member)] == [5]


def test_a_replaced_group_does_not_block_a_later_one():
    """trl#7274: a stale drop must not pin the frontier."""
    found = decided([group(0, [1, 0], version=0), *(group(n, [1, 0], version=5) for n in (1, 2))], version=5)
    assert numbers(found.batch) == [1, 2]
    assert [g.group for g in found.give_ups] == [0]


def test_failed_groups_are_bounded():
    """NeMo-RL#3613: bounded, then a clear failure."""
    failing = [group(n, [None, None]) for n in range(2)]
    assert decided(failing).exhausted is None
    found = decided(failing, failed_before=1)
    assert found.batch == ()
    assert found.exhausted is not None
    assert "3 groups were given up" in found.exhausted
    assert "limits.failed_groups" in found.exhausted


def test_stale_groups_do_not_count_as_failed():
    stale = [group(n, [1, 0], version=0) for n in range(5)]
    assert decided(stale, version=9).exhausted is None


def test_age_drops_members_and_a_group_only_where_fewer_than_two_are_left():
    young = [trajectory(0, member, segments=((0, 5),)) for member in (0, 1)]
    old = [trajectory(0, member, segments=((0, 2), (3, 5))) for member in (2, 3)]
    kept = judge(Group(0, "t", "v1", (*young, *old)), None, version=5, policy=RULE.policy)
    assert kept.reason is None
    assert [(one.verdict, one.reason) for one in kept.admission.members] == [("keep", "")] * 2 + [("drop", "age")] * 2
    gone = judge(Group(0, "t", "v1", (young[0], *old)), None, version=5, policy=RULE.policy)
    assert gone.reason is not None
    assert gone.reason.startswith("stale: 2 of 3 members are too old, by up to 3 versions")
    assert [use.weight for use in gone.give_up().uses] == [0.0] * 3


def test_a_group_is_not_trained_on_before_it_was_scored():
    rule = BatchRule(2, NEAR, 2)
    judged = [judge(group(n, [1, 0]), None, version=0, policy=NEAR) for n in (4, 1, 2)]
    waiting = decide(judged, failed_before=0, rule=rule)
    assert waiting.batch == ()
    assert [one.number for one in waiting.to_score] == [1, 2, 4]
    scored = [judge(group(n, [1, 0]), score(0.0, 0.0), version=0, policy=NEAR) for n in (1, 2)]
    found = decide([judged[0], *scored], failed_before=0, rule=rule)
    assert numbers(found.batch) == [1, 2], "a batch does not wait for the scores of others"
    assert [one.number for one in found.to_score] == [4]


def test_a_group_too_far_from_the_weights_is_given_up_with_the_figures():
    judged = judge(group(0, [1, 0, 1]), score(0.01, 3.5, 2.0), version=0, policy=NEAR)
    assert judged.reason == (
        "divergence: 1 of 3 members admitted; dropped 2 x k3 (largest 3.5 nats a token, limit 1.0)"
    )
    give_up = judged.give_up()
    assert (give_up.group, give_up.task_id, give_up.environment) == (0, "task-0", "pointer_chase/v1")
    assert [(use.verdict, use.reason, use.weight) for use in give_up.uses] == [
        ("keep", "", 0.0),
        ("drop", "k3", 0.0),
        ("drop", "k3", 0.0),
    ]
    few = judge(group(0, [1, 0]), score(0.0, 0.0, ess=0.05), version=0, policy=NEAR)
    assert few.reason == "divergence: 0 of 2 members admitted; dropped 2 x ess (smallest 0.05, limit 0.1)"


def test_one_far_member_is_dropped_and_a_less_far_one_weighs_less():
    judged = judge(group(0, [1, 0, 1, 0]), score(0.0, 0.2, 5.0, 0.0), version=0, policy=NEAR)
    assert judged.reason is None
    assert judged.admission.weights == (1.0, 0.5, 0.0, 1.0)


def test_a_score_that_is_no_number_drops_its_member():
    judged = judge(group(0, [1, 0, 1]), score(0.0, float("nan"), 0.0), version=0, policy=NEAR)
    assert judged.reason is None
    assert [one.reason for one in judged.admission.members] == ["", "not_finite", ""]
