"""Which groups make a batch, which are given up, and when the run has failed."""

from __future__ import annotations

import pytest

from driftline.records import Group
from driftline.training.batching import BatchRule, Decision, decide, sampled_segments
from tests.support.training import group, trajectory

RULE = BatchRule(groups_per_step=2, max_lag_versions=2, failed_groups=2)


def decided(finished: list[Group], *, version: int = 0, failed_before: int = 0) -> Decision:
    return decide(finished, version=version, failed_before=failed_before, rule=RULE)


def numbers(groups: tuple[Group, ...]) -> list[int]:
    return [g.number for g in groups]


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
        assert found.give_ups[0].reason == "stale: its oldest token is 3 versions old, limit 2"


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
