"""What a cell costs, and that nothing is lost, with many episodes in flight.

The engine is scripted and takes `step_s` for a token of every sequence. It works in this process, where a real one
has its own: its processor seconds are measured apart. A loop's lateness is told by processor time, of which another
process takes none: what the loop is due for late, it has spent between two heartbeats on something else.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from driftline.rollout.episode import Episode
from driftline.rollout.groups import OpenGroup
from driftline.rollout.meters import HEARTBEAT_S
from driftline.store.protocol import ObjectStore
from tests.support.rollout import encode
from tests.support.standing_run import MeteredEngine, standing_cell, standing_parameters, until
from tests.support.toy_run import check_once_each

LONG_TURNS: dict[str, Any] = {
    "rollout": {"max_tokens_per_turn": 64},
    "environment": {"max_turns": 3},
    "engine": {"max_model_len": 512},
}
TURN = encode(">zz" * 21 + "\n")
ROUNDS_TOKENS = (384_000, 768_000, 1_152_000)
"""About 2,000 episodes each."""
MOST_LAG_S = 0.05
KEPT_BYTES = 2**20
"""A fifth of what the trajectories of a round are in memory."""


def alive(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())  # `isinstance` asks proxies, which may raise.


class Heartbeats:
    """Processor seconds of the loop's thread between two heartbeats, the engine's own steps aside.

    More than a heartbeat lasts are the most by which anything that was due meanwhile came late.
    """

    def __init__(self, engine: MeteredEngine) -> None:
        self.seconds: list[float] = []
        self._engine = engine
        self._before = self._used()

    async def beat(self, until: Callable[[], bool]) -> None:
        self._before = self._used()
        while not until():
            await asyncio.sleep(HEARTBEAT_S)
            now = self._used()
            self.seconds.append(now - self._before)
            self._before = now

    @property
    def p99_s(self) -> float:
        return sorted(self.seconds)[int(0.99 * len(self.seconds))]

    def _used(self) -> float:
        return time.thread_time() - self._engine.steps_cpu_s


def stored_bytes(store: ObjectStore) -> int:
    return sum(len(store.get(info.key).body) for info in store.list(""))


@pytest.mark.slow
async def test_two_thousand_episodes_in_flight_lose_nothing_and_leave_nothing() -> None:
    params = standing_parameters(2000, 4000, **LONG_TURNS)
    engine = MeteredEngine(script=lambda _: TURN, max_num_seqs=2000, max_model_len=512, step_s=0.02)
    most, held = 0, list[tuple[int, int]]()
    beats = Heartbeats(engine)

    def reached(tokens: int) -> bool:
        nonlocal most
        most = max(most, engine.status().running + engine.status().waiting)
        return engine.status().generated_tokens >= tokens

    async with standing_cell(params, engine) as (run_store, _):
        for tokens in ROUNDS_TOKENS:
            await beats.beat(partial(reached, tokens))
            gc.collect()
            held.append((alive(Episode), alive(OpenGroup)))
    print(most, held, f"processor seconds between two heartbeats: p99 {beats.p99_s:.4f}, {max(beats.seconds):.4f}")
    assert most > 1900
    assert all(episodes <= 2100 and groups <= 2100 for episodes, groups in held)
    assert beats.p99_s < MOST_LAG_S
    found = run_store.new_groups()
    check_once_each(found, 8)
    assert all(t.status == "truncated" and t.reward == 0.0 for group in found for t in group.trajectories)
    gc.collect()
    assert (alive(Episode), alive(OpenGroup)) == (0, 0)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.slow
async def test_an_hour_takes_no_more_memory_than_a_minute() -> None:
    """By bytes: what Python holds, the objects that the store in memory holds aside."""
    params = standing_parameters(256, 4000, **LONG_TURNS)
    engine = MeteredEngine(script=lambda _: TURN, max_num_seqs=256, max_model_len=512, step_s=0.001)
    held = list[int]()
    tracemalloc.start()
    try:
        async with standing_cell(params, engine) as (run_store, _):
            for tokens in (100_000, 250_000, 400_000):
                await until(lambda: engine.status().generated_tokens >= tokens)  # noqa: B023
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0] - stored_bytes(run_store.store))
    finally:
        tracemalloc.stop()
    print([bytes_ / 2**20 for bytes_ in held])
    assert held[2] - held[1] < KEPT_BYTES, "800 episodes more, and nothing of them is kept"


@pytest.mark.slow
async def test_the_collector_takes_less_than_a_tenth_of_a_core_with_64_episodes_in_flight() -> None:
    """Turns of 64 tokens, three an episode: what the collector costs is by the turn, not by the token."""
    params = standing_parameters(64, 4000, **LONG_TURNS)
    engine = MeteredEngine(script=lambda _: TURN, max_num_seqs=64, max_model_len=512, step_s=0.02)
    async with standing_cell(params, engine):
        await until(lambda: engine.status().generated_tokens > 64 * 64)
        tokens = engine.status().generated_tokens
        wall, cpu, engine_cpu = time.perf_counter(), time.process_time(), engine.steps_cpu_s
        await asyncio.sleep(8.0)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        engine_cpu = engine.steps_cpu_s - engine_cpu
        tokens = engine.status().generated_tokens - tokens
    print(f"collector {(cpu - engine_cpu) / wall:.3f} engine {engine_cpu / wall:.3f} tokens/s {tokens / wall:.0f}")
    assert (cpu - engine_cpu) / wall < 0.1
