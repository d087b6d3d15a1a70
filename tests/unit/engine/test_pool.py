"""Several engines as one: where requests go, and what is left of them when engines die, hang or refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from driftline.engine.pool import EnginePool
from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.routing import RoutingBounds
from driftline.engine.scripted import ScriptedEngine
from driftline.errors import EngineDied, EngineStartFailed, WeightUpdateFailed
from tests.contract.test_engine import scripted_manifest
from tests.support.clock import Clock

pytestmark = pytest.mark.asyncio


class Recording(ScriptedEngine):
    """Remembers what it was asked."""

    def __init__(self, index: int) -> None:
        super().__init__(max_model_len=128, max_num_seqs=8)
        self.index = index
        self.asked: list[str] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request.id)
        return await super().generate(request)


class Made:
    """All engines that a pool has made, the first ones first."""

    def __init__(self) -> None:
        self.engines: list[Recording] = []
        self.broken: set[int] = set()
        """Those of these places in the order of making do not start."""

    def __call__(self, index: int) -> Recording:
        self.engines.append(Recording(index))
        if len(self.engines) - 1 in self.broken:
            self.engines[-1].die("its GPU is gone")
        return self.engines[-1]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest_asyncio.fixture
async def pool(made: Made, clock: Clock) -> AsyncIterator[EnginePool]:
    pool = EnginePool(made, 2, bounds=RoutingBounds(8, 2), stall_s=60.0, restarts=1, clock=clock)
    await pool.start()
    await pool.update(scripted_manifest(0))
    yield pool
    await pool.close()


def request(name: str, *, max_tokens: int = 4, affinity: tuple[str, ...] = ()) -> GenerationRequest:
    return GenerationRequest(name, (3, 4), max_tokens, (), 1.0, 1, affinity=affinity)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the pool offers no event)
            await asyncio.sleep(0)


async def started(pool: EnginePool, count: int, *, max_tokens: int = 100) -> list[asyncio.Task[Generation]]:
    calls = [asyncio.create_task(pool.generate(request(f"r{n}", max_tokens=max_tokens))) for n in range(count)]
    await until(lambda: pool.status().running == count)
    return calls


def unaccounted(pool: EnginePool) -> int:
    status = pool.status()
    return status.generated_tokens - status.in_flight_tokens - status.discarded_tokens - status.scored_tokens


async def test_turns_and_members_stay_with_their_prefix_and_groups_are_spread(made: Made, pool: EnginePool) -> None:
    for group in range(4):
        for turn in range(3):
            names = [f"{group}.{member}" for member in range(4)]
            await asyncio.gather(
                *(pool.generate(request(f"{n}/{turn}", affinity=(n, f"{group}"))) for n in names[:3])
            )
    groups = [{name.split(".")[0] for name in engine.asked} for engine in made.engines]
    assert groups[0] | groups[1] == {"0", "1", "2", "3"}
    assert not groups[0] & groups[1]
    assert len(groups[0]) == len(groups[1]) == 2


async def test_a_group_that_is_too_much_for_its_holder_spills(made: Made, pool: EnginePool) -> None:
    await asyncio.gather(*(pool.generate(request(f"0.{n}", affinity=(f"0.{n}", "0"))) for n in range(8)))
    assert sorted(len(engine.asked) for engine in made.engines) == [3, 5]


async def test_after_an_update_prefixes_are_nobodys(made: Made, pool: EnginePool) -> None:
    calls = await started(pool, 1)
    await pool.generate(request("a", affinity=("a",)))
    assert made.engines[1].asked == ["a"]
    await calls[0]
    await pool.update(scripted_manifest(1))
    await pool.generate(request("other", affinity=("b",)))
    await pool.generate(request("again", affinity=("a",)))
    assert "again" in made.engines[0].asked + made.engines[1].asked
    assert pool.status().version == scripted_manifest(1).version


async def test_a_death_fails_over_and_no_token_is_counted_twice(made: Made, pool: EnginePool) -> None:
    """SkyRL#1691: the engine dies and the run hangs."""
    calls = await started(pool, 6)
    await until(lambda: pool.status().generated_tokens >= 60)
    lost = made.engines[0].status().in_flight_tokens
    made.engines[0].die()
    turns = await asyncio.gather(*calls)
    assert all(len(turn.token_ids) == 100 for turn in turns)
    assert unaccounted(pool) == 600
    assert pool.status().discarded_tokens == lost > 0
    await until(lambda: pool.status().engines == 2)
    assert [engine.index for engine in made.engines] == [0, 1, 0]
    assert made.engines[2].status().version == scripted_manifest(0).version
    assert unaccounted(pool) == 600, "what the dead engine had counted is not forgotten"


async def test_it_goes_on_degraded_when_no_restart_is_left(made: Made, pool: EnginePool) -> None:
    """NeMo-RL#3613: endless restarts."""
    made.engines[0].die()
    await asyncio.gather(*(pool.generate(request(f"a{n}")) for n in range(4)))
    await until(lambda: pool.status().engines == 2)
    made.engines[2].die()
    await asyncio.gather(*(pool.generate(request(f"b{n}")) for n in range(4)))
    await asyncio.sleep(0)
    assert len(made.engines) == 3
    assert pool.status().engines == 1
    await pool.update(scripted_manifest(1))
    assert len((await pool.generate(request("last"))).token_ids) == 4
    made.engines[1].die()
    with pytest.raises(EngineDied, match="no engine is left"):
        await pool.generate(request("none"))


async def test_a_hanging_engine_is_given_up_and_its_requests_go_on(
    made: Made, pool: EnginePool, clock: Clock
) -> None:
    calls = await started(pool, 4)
    made.engines[0].hang()
    pool.check_progress()
    await until(lambda: sum(call.done() for call in calls) == 2)
    clock.now += 61.0
    pool.check_progress()
    assert all(len(turn.token_ids) == 100 for turn in await asyncio.gather(*calls))
    assert unaccounted(pool) == 400


async def test_a_version_that_some_refuse_is_served_by_the_others(made: Made, pool: EnginePool) -> None:
    made.engines[0].refuse_updates()
    report = await pool.update(scripted_manifest(1))
    assert report.applied
    await until(lambda: pool.status().engines == 2)
    assert made.engines[2].status().version == pool.status().version == scripted_manifest(1).version


async def test_a_version_that_all_refuse_leaves_the_old_one(made: Made, pool: EnginePool) -> None:
    for engine in made.engines:
        engine.refuse_updates()
    with pytest.raises(WeightUpdateFailed, match="refuse version"):
        await pool.update(scripted_manifest(1))
    assert pool.status().version == scripted_manifest(0).version
    assert pool.status().engines == 2
    assert len((await pool.generate(request("on"))).token_ids) == 4


async def test_a_cancelled_update_is_finished_all_the_same(pool: EnginePool) -> None:
    update = asyncio.create_task(pool.update(scripted_manifest(1)))
    await asyncio.sleep(0)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    await until(lambda: pool.status().version == scripted_manifest(1).version)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not (await pool.update(scripted_manifest(1))).applied


async def test_a_start_that_fails_leaves_nothing(made: Made) -> None:
    made.broken = {1}
    pool = EnginePool(made, 3, bounds=RoutingBounds(8, 2), stall_s=60.0)
    with pytest.raises(EngineStartFailed, match="GPU is gone"):
        await pool.start()
    for engine in made.engines:
        with pytest.raises(EngineStartFailed):
            await engine.start()


async def test_a_replacement_that_does_not_start_uses_up_a_restart(made: Made) -> None:
    made.broken = {2, 3}
    pool = EnginePool(made, 2, bounds=RoutingBounds(8, 2), stall_s=60.0, restarts=2)
    await pool.start()
    made.engines[0].die()
    await asyncio.gather(*(pool.generate(request(f"{n}")) for n in range(4)))
    await until(lambda: len(made.engines) == 4)
    await asyncio.gather(*(pool.generate(request(f"{n}")) for n in range(4)))
    assert pool.status().engines == 1
    await pool.close()
