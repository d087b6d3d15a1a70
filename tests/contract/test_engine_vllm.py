"""The contract of engines over vLLM: in this process, and in a server process of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from driftline.records import WeightsManifest
from driftline.store.run_store import RunStore
from tests.contract.test_engine import EngineCase, EngineContract
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import VOCABULARY, publish, save, tiny_llama
from tests.support.vllm import engine_parameters, running_engine, served_engine

CONTEXT = 128


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[running_engine, served_engine])
async def case(
    request: pytest.FixtureRequest, seaweed: Seaweed, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineCase]:
    run = f"contract-of-{request.param.__name__}"
    run_store = RunStore(seaweed.store(), run)
    published: dict[int, WeightsManifest] = {}

    def manifest(number: int) -> WeightsManifest:
        if number not in published:
            published[number] = publish(tiny_llama(number, positions=CONTEXT), run_store, number)
        return published[number]

    model_dir = save(tiny_llama(0, positions=CONTEXT), tmp_path_factory.mktemp("model"))
    params = engine_parameters(max_model_len=CONTEXT, max_num_seqs=64)
    async with request.param(params, model_dir, run, seaweed.settings) as engine:
        await engine.update(manifest(0))
        yield EngineCase(engine, manifest, VOCABULARY, CONTEXT, prompt=(3, 17, 18, 2))


@pytest.mark.timeout(600)
class TestVllmEngine(EngineContract):
    """The contract over a real engine."""
