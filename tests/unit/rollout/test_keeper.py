from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driftline.environment import Task
from driftline.errors import EngineDied
from driftline.rollout.background import StoreThreads, cancel_and_wait
from driftline.rollout.groups import OpenGroup
from driftline.rollout.keeper import Keeper
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tests.support.rollout import encode, resources, spec, started

LEASE_S = 30.0
STALL_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def keeper(run_store: RunStore, engine: Any, open_groups: dict[int, OpenGroup], clock: Clock, **more: Any) -> Keeper:
    async def report() -> None:
        pass

    return Keeper(
        run_store,
        engine,
        StoreThreads(1),
        open_groups=open_groups,
        lease_s=LEASE_S,
        stall_s=STALL_S,
        on_lost=more.get("on_lost", lambda group: None),
        report=report,
        monotonic=clock,
    )


async def test_an_engine_with_requests_and_without_tokens_is_dead_after_the_stall() -> None:
    """prime-rl#1713: a silent hang. NeMo-RL#2368: a parked run."""
    clock, engine = Clock(), await started(lambda _: encode(">ab\n"))
    watch = keeper(RunStore(MemoryStore(), "r"), engine, {}, clock)
    clock.now += 10 * STALL_S
    watch.check_engine()
    engine.hang()
    from driftline.rollout.episode import Episode

    playing = asyncio.create_task(Episode(spec(_task()), resources(engine)).play())
    while not engine.status().waiting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    clock.now += STALL_S
    watch.check_engine()
    clock.now += 1.0
    with pytest.raises(EngineDied, match="made no token for 60 s with 0 requests running and 1 waiting"):
        watch.check_engine()
    await cancel_and_wait([playing])
    watch.check_engine()
    await engine.close()


async def test_leases_are_renewed_after_a_third_and_lost_ones_told() -> None:
    now = [500.0]
    store = MemoryStore(clock=lambda: now[0])
    run_store, clock, lost = RunStore(store, "r"), Clock(), list[int]()
    claims = [run_store.claim(number, "c0", "t", "s", LEASE_S) for number in (1, 2)]
    groups = {claim.group: OpenGroup(claim, _task(), 2, clock()) for claim in claims if claim}
    engine = await started()
    watch = keeper(run_store, engine, groups, clock, on_lost=lambda group: lost.append(group.number))
    clock.now += LEASE_S / 3 - 0.1
    await watch.renew_due()
    assert {group.renewed_at for group in groups.values()} == {1000.0}
    clock.now += 0.2
    now[0] += LEASE_S / 2 + 1.0
    await watch.renew_due()
    assert {group.renewed_at for group in groups.values()} == {clock.now}
    assert all(group.claim.expires_unix > now[0] + LEASE_S / 2 for group in groups.values())
    assert lost == []
    now[0] += 2 * LEASE_S
    assert RunStore(store, "r").claim(2, "c1", "t", "s", LEASE_S) is not None
    clock.now += LEASE_S
    await watch.renew_due()
    assert lost == [2]
    await engine.close()


def _task() -> Task:
    return Task.create("pointer_chase/v1", {"start": "ab", "files": {"ab": "42"}})
