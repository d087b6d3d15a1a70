"""Leases by a clock of the test's own: when a claim expires, who gets it, and what the former holder notices."""

from __future__ import annotations

from typing import cast

import pytest

from driftline.errors import PreconditionFailed
from driftline.records import Claim, decode
from driftline.store import keys
from driftline.store.claims import StoreClock
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tests.support import records
from tests.support.clock import Clock

LEASE_S = 20.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


def cell(store: MemoryStore) -> RunStore:
    """One process's view of the run."""
    return RunStore(store, records.RUN)


def taken(runs: RunStore, name: str, group: int = 0) -> Claim:
    claim = runs.claim(group, name, f"task-{group}", "v1", LEASE_S)
    assert claim is not None
    return claim


def stored(store: MemoryStore, group: int = 0) -> Claim:
    return decode(Claim, store.get(keys.claim(records.RUN, group)).body)


def test_a_claim_is_held_until_its_lease_is_over(store: MemoryStore, clock: Clock) -> None:
    a, b = cell(store), cell(store)
    mine = taken(a, "a")
    assert mine.expires_unix == pytest.approx(clock.now + LEASE_S, abs=0.1)
    clock.now += LEASE_S - 1
    assert b.claim(0, "b", "task-0", "v1", LEASE_S) is None
    clock.now += 2
    theirs = taken(b, "b")
    assert (theirs.cell, theirs.attempt) == ("b", 2)
    assert theirs.expires_unix == pytest.approx(clock.now + LEASE_S, abs=0.1)
    assert stored(store) == theirs


def test_the_task_of_the_first_claim_stays(store: MemoryStore, clock: Clock) -> None:
    taken(cell(store), "a")
    clock.now += LEASE_S + 1
    theirs = cell(store).claim(0, "b", "a newer task", "v2", LEASE_S)
    assert theirs is not None
    assert (theirs.task_id, theirs.task_set) == ("task-0", "v1")


def test_renewing_holds_on(store: MemoryStore, clock: Clock) -> None:
    a, b = cell(store), cell(store)
    mine = taken(a, "a")
    for _ in range(5):
        clock.now += LEASE_S - 5
        mine = a.renew(mine, LEASE_S)
        assert b.claim(0, "b", "task-0", "v1", LEASE_S) is None
    assert mine.expires_unix == pytest.approx(clock.now + LEASE_S, abs=0.1)


def test_an_expired_claim_that_nobody_took_can_be_renewed(store: MemoryStore, clock: Clock) -> None:
    a = cell(store)
    mine = taken(a, "a")
    clock.now += 10 * LEASE_S
    renewed = a.renew(mine, LEASE_S)
    assert renewed.attempt == 1
    assert cell(store).claim(0, "b", "task-0", "v1", LEASE_S) is None


def test_who_was_too_late_notices_at_the_next_renewal(store: MemoryStore, clock: Clock) -> None:
    a, b = cell(store), cell(store)
    mine = taken(a, "a")
    clock.now += LEASE_S + 1
    theirs = taken(b, "b")
    for _ in range(2):
        with pytest.raises(PreconditionFailed, match=r"group 0 \(attempt 1\) is lost"):
            a.renew(mine, LEASE_S)
    a.release(mine)
    assert stored(store) == theirs


def test_a_restarted_cell_waits_like_any_other(store: MemoryStore, clock: Clock) -> None:
    taken(cell(store), "a")
    again = cell(store)
    assert again.claim(0, "a", "task-0", "v1", LEASE_S) is None
    clock.now += LEASE_S + 1
    assert taken(again, "a").attempt == 2


def test_a_group_that_finished_late_is_not_taken_over(store: MemoryStore, clock: Clock) -> None:
    a = cell(store)
    taken(a, "a", 0)
    taken(a, "a", 1)
    clock.now += LEASE_S + 1
    b = cell(store)
    a.append_groups("a", 0, [records.group(1)])
    assert b.claim(1, "b", "task-1", "v1", LEASE_S) is None
    assert taken(b, "b", 0).attempt == 2
    clock.now += LEASE_S + 1
    b.append_groups("b", 0, [records.group(0, attempt=2)])
    assert a.claim(0, "a", "task-0", "v1", LEASE_S) is None


def test_a_lease_reckoned_with_a_stale_clock_is_set_right(store: MemoryStore, clock: Clock) -> None:
    a = cell(store)
    taken(a, "a", 0)
    clock.now += 1000
    mine = taken(a, "a", 1)
    assert mine.expires_unix == pytest.approx(clock.now + LEASE_S, abs=0.1)
    assert stored(store, 1) == mine
    assert a.renew(mine, LEASE_S).group == 1


def test_the_stores_clock_is_estimated_from_the_best_answer() -> None:
    local = Clock()
    clock = StoreClock(local)
    assert clock.now() is None
    clock.observe(5000.0)  # arrives 0.7 s late, say
    local.now += 10
    clock.observe(5010.6)
    local.now += 10
    clock.observe(5020.2)
    assert cast(float, clock.now()) == pytest.approx(5020.6)
    for _ in range(40):  # the store's clock was set back: old answers are forgotten
        clock.observe(3000.0)
    assert clock.now() == pytest.approx(3000.0)
