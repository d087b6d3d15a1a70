"""An engine that slows is no engine that fails: episodes go on, nothing is given up, fewer of them are in flight."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from driftline.rollout.concurrency import Slots
from tests.support.rollout import encode
from tests.support.standing_run import MeteredEngine, standing_cell, standing_parameters, until
from tests.support.toy_run import check_once_each

WATCHDOG_S = 6.0
TURN = encode(">zz" * 10 + "\n")
SECTIONS: dict[str, Any] = {
    "rollout": {"max_tokens_per_turn": 64, "concurrency": "adaptive"},
    "environment": {"max_turns": 2},
    "engine": {"max_model_len": 512, "max_num_seqs": 64, "request_deadline_s": 30.0},
    "limits": {"watchdog_s": WATCHDOG_S},
}


class SlowingEngine(MeteredEngine):
    """Can become slow, and bear less, as one does whose device it comes to share."""

    def slow(self, step_s: float, bears: int) -> None:
        self._step_s, self._bears = step_s, bears


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits after each look at the engine."""
    seen, look = list[int](), Slots.look

    def watched(slots: Slots) -> bool:
        grown = look(slots)
        seen.append(slots.limit)
        return grown

    monkeypatch.setattr(Slots, "look", watched)
    return seen


@pytest.mark.slow
async def test_an_engine_that_slows_goes_on_with_fewer_episodes_in_flight(limits: list[int]) -> None:
    engine = SlowingEngine(script=lambda _: TURN, max_num_seqs=64, max_model_len=512, step_s=0.002)
    async with standing_cell(standing_parameters(64, 400, **SECTIONS), engine) as (run_store, collecting):
        await until(lambda: engine.status().generated_tokens > 64 * 40)
        before = limits[-1]
        # A turn of 31 tokens takes longer than the watchdog waits, and no turn ends meanwhile.
        engine.slow(step_s=1.1 * WATCHDOG_S / len(TURN), bears=24)
        tokens, began = engine.status().generated_tokens, time.monotonic()
        await until(lambda: limits[-1] <= 40 and engine.status().generated_tokens > tokens + 24 * 2 * len(TURN))
        assert time.monotonic() - began > WATCHDOG_S
        assert not collecting.done(), "it makes progress, however slowly"
        assert limits[-1] < before == 64
        assert engine.status().preemptions > 0
        engine.slow(step_s=0.001, bears=64)
        low = min(limits)
        await until(lambda: limits[-1] > low)
    counters = await asyncio.wait_for(collecting, 1.0)
    assert (counters.failed, counters.episodes > 0) == (0, True)
    found = run_store.new_groups()
    check_once_each(found, 8)
    assert {member.status for group in found for member in group.trajectories} == {"truncated"}
