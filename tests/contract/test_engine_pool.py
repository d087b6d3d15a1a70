"""The contract of a pool of engines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from driftline.engine.pool import EnginePool
from driftline.engine.routing import RoutingBounds
from driftline.engine.scripted import ScriptedEngine
from tests.contract.test_engine import EngineCase, EngineContract, scripted_manifest


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def case() -> AsyncIterator[EngineCase]:
    engine = EnginePool(
        lambda index: ScriptedEngine(vocabulary=43, max_model_len=128, max_num_seqs=8),
        3,
        bounds=RoutingBounds(capacity=8, spill_beyond=2),
        stall_s=60.0,
    )
    await engine.start()
    await engine.update(scripted_manifest(0))
    yield EngineCase(engine, scripted_manifest, 43, 128, prompt=(3, 17, 18, 2))
    await engine.close()


class TestEnginePool(EngineContract):
    """The contract over three scripted engines."""
