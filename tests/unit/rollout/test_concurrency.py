"""How many episodes may be in flight, against engines of which it is known what they bear."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Literal, cast

import pytest

from driftline.engine.protocol import Engine, EngineStatus
from driftline.rollout.concurrency import REST_LOOKS, Bounds, Limit, Pressure, Slots, adjusted, slots_of
from tests.support.rollout import parameters

BOUNDS = Bounds(8, 512)
CALM = Pressure(in_flight=64, running=64, waiting=0, kv_cache_share=0.2, preempted=0)


def test_it_grows_by_a_quarter_while_the_engine_is_calm() -> None:
    assert adjusted(Limit(64), CALM, BOUNDS) == Limit(80)


def test_after_the_first_pressure_it_grows_by_a_sixteenth() -> None:
    assert adjusted(Limit(64, pressed=True), CALM, BOUNDS) == Limit(68, pressed=True)


def test_it_does_not_grow_where_it_is_not_what_holds_the_cell_back() -> None:
    assert adjusted(Limit(65), CALM, BOUNDS) == Limit(65)


def test_it_does_not_grow_into_a_queue() -> None:
    assert adjusted(Limit(64), replace(CALM, waiting=9), BOUNDS) == Limit(64)
    assert adjusted(Limit(64), replace(CALM, waiting=8), BOUNDS) == Limit(80), "a short one keeps the steps full"


def test_it_does_not_grow_beyond_what_the_cache_holds() -> None:
    assert adjusted(Limit(64), replace(CALM, kv_cache_share=0.73), BOUNDS) == Limit(64, pressed=True)
    assert adjusted(Limit(64), replace(CALM, kv_cache_share=0.71), BOUNDS) == Limit(80)


def test_a_preemption_cuts_it_by_a_fifth_of_what_is_in_flight() -> None:
    assert adjusted(Limit(100), replace(CALM, preempted=1), BOUNDS) == Limit(51, pressed=True, rest=REST_LOOKS)


def test_after_a_cut_it_rests_whatever_happens() -> None:
    limit = Limit(51, pressed=True, rest=REST_LOOKS)
    for _ in range(REST_LOOKS):
        limit = adjusted(limit, replace(CALM, preempted=3), BOUNDS)
    assert limit == Limit(51, pressed=True, rest=0)
    assert adjusted(limit, replace(CALM, preempted=3), BOUNDS).episodes == 40


def test_it_stays_within_its_bounds() -> None:
    assert adjusted(Limit(500), replace(CALM, in_flight=500), BOUNDS).episodes == 512
    assert adjusted(Limit(9), replace(CALM, in_flight=9, preempted=1), BOUNDS).episodes == 8


@dataclass
class Plant:
    """An engine whose cache holds `blocks` blocks, of which each request needs `blocks_each`."""

    blocks: int
    blocks_each: int
    most_running: int
    in_tools: float = 0.0
    """Share of the episodes that are in no request."""
    in_flight: int = 0
    preemptions: int = 0

    def status(self) -> EngineStatus:
        requests = int(self.in_flight * (1 - self.in_tools))
        fit = min(self.most_running, self.blocks // self.blocks_each)
        running = min(requests, fit)
        if requests > self.blocks // self.blocks_each and self.blocks // self.blocks_each < self.most_running:
            self.preemptions += 1
        share = running * self.blocks_each / self.blocks
        return EngineStatus(None, running, requests - running, share, self.preemptions, 0.0, 0, 0)


def settled(plant: Plant, bounds: Bounds, *, begin: int, looks: int = 200) -> list[int]:
    """The limits of the second half of a run in which the cell always fills its slots."""
    slots = Slots(cast(Engine, plant), bounds, begin=begin, in_flight=lambda: plant.in_flight)
    limits: list[int] = []
    for _ in range(looks):
        # What is beyond a limit that was cut ends by itself, a part at a time.
        plant.in_flight = max(slots.limit, plant.in_flight - 8)
        slots.look()
        limits.append(slots.limit)
    return limits[looks // 2 :]


@pytest.mark.parametrize("begin", [8, 64, 512])
def test_it_finds_what_the_cache_bears_from_anywhere(begin: int) -> None:
    limits = settled(Plant(blocks=800, blocks_each=8, most_running=512), BOUNDS, begin=begin)
    assert min(limits) >= 70, "at least 70% of the hundred that fit"
    assert max(limits) <= 100


def test_it_takes_tools_into_account() -> None:
    """Half of the episodes are in tools and hold no cache: twice as many may be in flight."""
    limits = settled(Plant(blocks=800, blocks_each=8, most_running=512, in_tools=0.5), BOUNDS, begin=64)
    assert min(limits) >= 140
    assert max(limits) <= 201


def test_it_stops_where_the_engine_runs_no_more_at_once() -> None:
    limits = settled(Plant(blocks=10**6, blocks_each=1, most_running=64), BOUNDS, begin=8)
    assert set(limits) == {limits[0]}
    assert 64 <= limits[0] <= 90


@pytest.mark.parametrize(("concurrency", "limits"), [("fixed", {100}), ("adaptive", {64, 80, 100})])
def test_a_fixed_limit_stays_and_an_adaptive_one_begins_at_what_the_engine_runs(
    concurrency: Literal["fixed", "adaptive"], limits: set[int]
) -> None:
    params = parameters(rollout={"episodes_in_flight": 100, "concurrency": concurrency}, engine={"max_num_seqs": 64})
    plant = Plant(blocks=10**6, blocks_each=1, most_running=512)
    slots = slots_of(params, cast(Engine, plant), lambda: plant.in_flight)
    seen: set[int] = set()
    for _ in range(4):
        seen.add(slots.limit)
        plant.in_flight = slots.limit
        assert slots.free == 0
        slots.look()
    assert seen == limits


async def test_growth_wakes_whoever_starts_episodes() -> None:
    plant = Plant(blocks=10**6, blocks_each=1, most_running=512, in_flight=64)
    slots = Slots(cast(Engine, plant), BOUNDS, begin=64, in_flight=lambda: plant.in_flight)
    woken = asyncio.Event()
    adapting = asyncio.create_task(slots.adapt(woken.set))
    async with asyncio.timeout(5):
        await woken.wait()
    adapting.cancel()
    assert slots.free == 16


def test_a_small_limit_grows_too() -> None:
    small = replace(CALM, in_flight=9, running=9)
    assert adjusted(Limit(9, pressed=True), small, BOUNDS) == Limit(10, pressed=True), "a sixteenth of 9 is none"


def test_nothing_is_free_while_more_are_in_flight_than_the_limit_says() -> None:
    plant = Plant(blocks=10**6, blocks_each=1, most_running=512, in_flight=80)
    slots = Slots(cast(Engine, plant), BOUNDS, begin=64, in_flight=lambda: plant.in_flight)
    assert slots.free == 0
    plant.in_flight = 60
    assert slots.free == 4


@pytest.mark.parametrize(("most", "lowest"), [(100, 6), (4, 4)])
def test_an_adaptive_limit_is_cut_to_a_group_and_no_further(most: int, lowest: int) -> None:
    """Fewer than a group in flight could complete none."""
    rollout = {"episodes_in_flight": most, "concurrency": "adaptive", "group_size": 6}
    plant = Plant(blocks=8, blocks_each=8, most_running=512)
    slots = slots_of(parameters(rollout=rollout), cast(Engine, plant), lambda: plant.in_flight)
    for _ in range(200):
        plant.in_flight = max(slots.limit, 2)
        slots.look()
    assert slots.limit == lowest


def test_a_cell_with_several_engines_begins_with_what_all_of_them_run() -> None:
    params = parameters(
        rollout={"episodes_in_flight": 1000, "concurrency": "adaptive"},
        engine={"backend": "vllm_server", "max_num_seqs": 64, "replicas": 3},
    )
    plant = Plant(blocks=10**6, blocks_each=1, most_running=512)
    assert slots_of(params, cast(Engine, plant), lambda: plant.in_flight).limit == 192
