"""The contract of an engine in a server process: the scripted one, which takes no time to start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from driftline.engine.served import ServedEngine
from driftline.params import EngineParameters, settings
from tests.contract.test_engine import EngineCase, EngineContract, scripted_manifest
from tests.support.scripted_host import SLOW


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def case() -> AsyncIterator[EngineCase]:
    params = EngineParameters(backend="scripted", max_model_len=128)  # pyright: ignore[reportCallIssue]
    engine = ServedEngine(params, Path(), run="contract", settings=settings(), maker=SLOW)
    await engine.start()
    await engine.update(scripted_manifest(0))
    yield EngineCase(engine, scripted_manifest, 43, 128, prompt=(3, 17, 18, 2))
    await engine.close()


class TestServedEngine(EngineContract):
    """The contract over a scripted engine in a process of its own."""
