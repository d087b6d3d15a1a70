from __future__ import annotations

import pytest

from driftline.records import Head, PolicyVersion
from driftline.rollout import scheduler
from driftline.rollout.scheduler import GroupLedger


def head(version: int | None, spent: int = 0, lead_groups: int = 0, epoch: int = 1) -> Head:
    return Head(
        epoch=epoch,
        step=version or 0,
        version=None if version is None else PolicyVersion(version, epoch),
        record=None,
        spent=spent,
        given_up=(),
        lead_groups=lead_groups,
        task_sets=((0, "set"),),
    )


@pytest.mark.parametrize(("spent", "lead", "limit"), [(0, 0, 16), (16, 0, 32), (16, 16, 48), (19, 3, 38)])
def test_the_admission_limit(spent: int, lead: int, limit: int) -> None:
    assert scheduler.admission_limit(head(1, spent, lead), 16) == limit


def test_admission_goes_by_the_head_whose_version_the_engine_holds() -> None:
    """prime-rl#3050: what counts is what the engine has acknowledged."""
    old, new, given_up = head(1, 16), head(2, 32), head(2, 33)
    assert scheduler.acknowledged_head(None, head(None), None) is None
    assert scheduler.acknowledged_head(None, old, None) is None
    assert scheduler.acknowledged_head(None, old, 1) is old
    assert scheduler.acknowledged_head(old, new, 1) is old
    assert scheduler.acknowledged_head(old, new, 2) is new
    assert scheduler.acknowledged_head(new, given_up, 2) is given_up


def test_low_groups_start_first_up_to_slots_and_limit() -> None:
    waiting = {5: [0, 1], 3: [2, 3], 9: [0]}
    assert scheduler.starts(waiting, 10, 9) == [(3, 2), (3, 3), (5, 0), (5, 1)]
    assert scheduler.starts(waiting, 3, 9) == [(3, 2), (3, 3), (5, 0)]
    assert scheduler.starts(waiting, 10, 100) == [(3, 2), (3, 3), (5, 0), (5, 1), (9, 0)]
    assert scheduler.starts(waiting, 0, 100) == []
    assert scheduler.priority(3) < scheduler.priority(5)


def test_only_what_can_only_arrive_beyond_the_limit_is_too_old() -> None:
    assert not scheduler.too_old(3, 11, 8)
    assert scheduler.too_old(3, 12, 8)
    assert not scheduler.too_old(None, 99, 8)


def test_a_ledger_offers_each_number_once() -> None:
    ledger = GroupLedger()
    assert ledger.take(4, 10, now=0) == [0, 1, 2, 3]
    assert ledger.take(4, 10, now=0) == []
    assert ledger.take(7, 2, now=0) == [4, 5]
    assert ledger.take(7, 2, now=0) == [6]


def test_a_limit_that_has_fallen_leaves_what_lies_above_it_for_later() -> None:
    """The controller cuts the lead below numbers that were offered already."""
    ledger = GroupLedger(offset=1, stride=2)
    assert ledger.take(8, 2, now=0) == [1, 3]
    ledger.held_elsewhere(1, retry_at=5.0)
    assert ledger.take(3, 10, now=9) == [1, 0, 2]
    assert ledger.take(3, 10, now=9) == []
    assert ledger.take(6, 10, now=9) == [5, 4]
    assert ledger.take(9, 10, now=9) == [7, 6, 8]


def test_a_ledger_begins_behind_what_is_closed() -> None:
    """AReaL: after a resume the count starts from zero."""
    ledger = GroupLedger(closed=[0, 1, 3])
    assert ledger.take(6, 10, now=0) == [2, 4, 5]


def test_cells_try_their_own_class_first() -> None:
    ledger = GroupLedger(offset=1, stride=3)
    assert ledger.take(7, 4, now=0) == [1, 4, 0, 2]
    assert ledger.take(10, 10, now=0) == [7, 3, 5, 6, 8, 9]


def test_what_is_held_elsewhere_is_tried_again_when_its_lease_may_be_over() -> None:
    ledger = GroupLedger()
    assert ledger.take(2, 10, now=0) == [0, 1]
    ledger.held_elsewhere(0, retry_at=20.0)
    ledger.held_elsewhere(1, retry_at=25.0)
    assert ledger.next_retry() == 20.0
    assert sorted(ledger.elsewhere) == [0, 1]
    assert ledger.take(2, 10, now=19.9) == []
    assert ledger.take(2, 10, now=20.0) == [0]
    ledger.close([1])
    assert ledger.next_retry() is None
    assert ledger.take(2, 10, now=99.0) == []
    ledger.held_elsewhere(1, retry_at=100.0)
    assert ledger.next_retry() is None


@pytest.mark.parametrize(
    ("queued", "delivered", "now"), [(1, 15, True), (1, 14, False), (9, 14, True), (3, 16, False)]
)
def test_a_group_is_urgent_when_it_completes_the_next_batch(queued: int, delivered: int, now: bool) -> None:
    assert scheduler.completes_a_batch(queued, delivered, spent=0, groups_per_step=16) is now
    assert scheduler.completes_a_batch(queued, delivered + 5, spent=5, groups_per_step=16) is now
