"""What a cell costs, and that nothing is lost, with many episodes in flight.

The engine is scripted and takes `step_s` for a token of every sequence. It works in this process, where a real one
has its own: its processor seconds are measured apart. Its steps are in the lag of the event loop, which is printed.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from driftline.rollout.episode import Episode
from driftline.rollout.groups import OpenGroup
from driftline.rollout.meters import LagMeter
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


def alive(kind: type) -> int:
    return sum(isinstance(one, kind) for one in gc.get_objects())


@pytest.mark.slow
async def test_two_thousand_episodes_in_flight_lose_nothing_and_leave_nothing() -> None:
    params = standing_parameters(2000, 4000, **LONG_TURNS)
    engine = MeteredEngine(script=lambda _: TURN, max_num_seqs=2000, max_model_len=512, step_s=0.02)
    most, held, lag = 0, list[tuple[int, int]](), LagMeter()
    async with standing_cell(params, engine) as (run_store, _):
        for tokens in ROUNDS_TOKENS:
            async with lag.measured():
                while engine.status().generated_tokens < tokens:
                    most = max(most, engine.status().running + engine.status().waiting)
                    await asyncio.sleep(0.02)
            gc.collect()
            held.append((alive(Episode), alive(OpenGroup)))
    figures = lag.take()
    print(most, held, figures, engine.steps_cpu_s)
    assert most > 1900
    assert all(episodes <= 2100 and groups <= 2100 for episodes, groups in held)
    assert figures is not None
    found = run_store.new_groups()
    check_once_each(found, 8)
    assert all(t.status == "truncated" and t.reward == 0.0 for group in found for t in group.trajectories)
    gc.collect()
    assert (alive(Episode), alive(OpenGroup)) == (0, 0)
    assert len(asyncio.all_tasks()) == 1


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
