"""A cell whose trainer only lets it play: a run with a policy, room for many groups, and an end on demand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from driftline.engine.scripted import ScriptedEngine
from driftline.params import RunParameters
from driftline.records import PolicyVersion
from driftline.rollout.cell import collect
from driftline.rollout.telemetry import Counters
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tests.support.rollout import FAMILY, RENDERER, manifest
from tests.support.toy_run import RUN, RecordingSink, create_run, toy_parameters


class MeteredEngine(ScriptedEngine):
    """Knows the processor seconds that its own steps take, which a real engine takes elsewhere."""

    steps_cpu_s = 0.0
    _since = 0.0

    def _admit(self) -> None:
        self._since = time.thread_time()
        super()._admit()

    def _preempt(self) -> None:
        super()._preempt()
        self.steps_cpu_s += time.thread_time() - self._since


def standing_parameters(episodes: int, groups: int, **sections: dict[str, Any]) -> RunParameters:
    """`episodes` in flight, and room for `groups`, none of which is ever trained on."""
    base: dict[str, dict[str, Any]] = {
        "rollout": {
            "groups_per_step": groups,
            "group_size": 8,
            "episodes_in_flight": episodes,
            "concurrency": "fixed",
        },
        "overlap": {"lead_groups": groups, "max_lag_versions": 1},
        "tracking": {"traces_every_steps": 0},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return toy_parameters(**base)


@asynccontextmanager
async def standing_cell(
    params: RunParameters, engine: ScriptedEngine, *, family: Any = FAMILY, sink: RecordingSink | None = None
) -> AsyncIterator[tuple[RunStore, asyncio.Task[Counters]]]:
    """The cell, at work. At the end of the context the run is over, and the cell has ended or fails."""
    run_store = create_run(MemoryStore(), params, family=family)
    lease = run_store.take_epoch()
    run_store.write_manifest(manifest(0, RUN, lease.epoch))
    lease.commit(replace(lease.head, version=PolicyVersion(0, lease.epoch)))
    await engine.start()
    collecting = asyncio.create_task(
        collect(
            run_store, params, cell="c0", engine=engine, renderer=RENDERER, family=family,
            sink=sink or RecordingSink(), on_progress=lambda _: None,
        )
    )  # fmt: skip
    try:
        yield run_store, collecting
        run_store.end("cancelled", "enough")
        async with asyncio.timeout(60.0):
            await collecting
    finally:
        collecting.cancel()
        await asyncio.wait([collecting])
        await engine.close()


async def until(condition: Callable[[], bool], deadline_s: float = 120.0) -> None:
    """Wait for something that has no event."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
