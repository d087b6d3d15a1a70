"""Whole runs of several arms, one after the other, on one warm vLLM engine: what the studies have in common.

DeepSpeed trains each run in its own process, and a real SeaweedFS stands between them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.local_run import base_model, begin, host_engine, play, train
from driftline.engine.vllm_engine import VllmEngine
from driftline.params import EngineParameters, RunParameters, settings
from driftline.records import ModelSource
from driftline.rollout.bootstrap import Surroundings, read_run
from driftline.rollout.evaluate import evaluate
from driftline.store.protocol import ObjectStore
from driftline.tracking.sink import NullSink
from tasks.refresh import Proposal
from tests.support.seaweed import running_seaweed

ENGINE_CPU, TRAINER_CPU = 0, 1
STORE_PATIENCE_S = 180.0
TRAINER = ("driftline.training.entry",)


class WarmRuns:
    """Runs whose models have one shape: the engine starts with the first, and takes up each other's weights."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self.store = store
        self._folder = folder
        self._engine: VllmEngine | None = None

    async def base_model(self, params: RunParameters) -> ModelSource:
        """The base policy that a run with these parameters has by itself."""
        return await base_model(params, self.store, self._folder)

    async def begin(
        self, params: RunParameters, run: str, *, model: ModelSource | None = None, proposal: Proposal | None = None
    ) -> Surroundings:
        """Create a run, over a base policy and tasks that are made or drawn where none are given."""
        await begin(params, run, self.store, self._folder, model=model, proposal=proposal)
        return await asyncio.to_thread(read_run, run, settings())

    async def finish(self, found: Surroundings, trainer: Sequence[str] = TRAINER, *, deadline_s: float) -> None:
        """Play and train a run to its end; the start of the engine does not count.

        Args:
            found: The run.
            trainer: The module of the trainer's process, and its options.
            deadline_s: Seconds for all of it.

        Raises:
            TimeoutError: It took longer.
        """
        engine = await self._serving(found)
        async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
            group.create_task(train(found.run_store.run, self._folder, TRAINER_CPU, *trainer))
            group.create_task(play(found, engine))

    async def held_out_success(self, found: Surroundings, versions: Sequence[int]) -> dict[int, float]:
        """Success of versions of the run that has just finished, over its held-out tasks."""
        assert self._engine is not None
        results = await evaluate(found, self._engine, NullSink(), versions)
        return {result.version: result.success for result in results}

    async def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            await self._engine.close()

    async def _serving(self, found: Surroundings) -> VllmEngine:
        run = found.run_store.run
        if self._engine is None:
            self._engine = VllmEngine(found.parameters.engine, found.model_dir, run=run)
            await self._engine.start()
        else:
            await self._engine.serve_run(run)
        return self._engine


@asynccontextmanager
async def warm_runs(params: EngineParameters) -> AsyncIterator[WarmRuns]:
    """Make this process the host of the engine, over a store of its own; all of it is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="driftline-study-") as name, running_seaweed(Path(name)) as seaweed:
        folder = Path(name)
        host_engine(params, seaweed, folder)
        runs = WarmRuns(seaweed.store(STORE_PATIENCE_S), folder)
        try:
            yield runs
        finally:
            await runs.close()
