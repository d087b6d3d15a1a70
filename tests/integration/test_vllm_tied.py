"""A vLLM engine with tied embeddings, whose running requests are recomputed at an update.

It starts from an exported model directory. After an update the CPU backend keeps the old packed output head
unless it is told otherwise, and nothing fails: only the comparison with the trainer's model shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest
import pytest_asyncio

from driftline.engine.vllm_engine import VllmEngine
from driftline.errors import EngineDied, WeightUpdateFailed
from driftline.records import Head, ModelSource, RunDescription, WeightsManifest
from driftline.store.files import download, upload_directory
from driftline.store.run_store import RunStore
from driftline.weights.export import export_run
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import publish, save, tiny_llama
from tests.support.vllm import AGREEMENT_NATS, EngineUnderTest, engine_parameters, running_engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

RUN = "tied"
PROMPT = tuple(range(3, 43)) * 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def case(seaweed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineUnderTest]:
    scratch = tmp_path_factory.mktemp("tied")
    run_store = RunStore(seaweed.store(), RUN)
    models = [tiny_llama(seed, tied=True) for seed in range(12)]
    manifests = [publish(model, run_store, number) for number, model in enumerate(models)]
    prefix = "models/tied-base/"
    files = upload_directory(run_store.store, prefix, save(tiny_llama(99, tied=True), scratch / "base"))
    base = ModelSource("tied-base", prefix, files, tied_embeddings=True)
    run_store.create(RunDescription(RUN, 0.0, {}, "code", base, "tasks", "held-out", None))
    run_store.create_head(Head(1, 0, manifests[0].version, None, 0, (), 0, ()))
    _, exported = export_run(run_store)
    download(run_store.store, exported, f"runs/{RUN}/model/", scratch / "exported")
    params = engine_parameters(kv_on_update="recompute")
    async with running_engine(params, scratch / "exported", RUN, seaweed.settings) as engine:
        yield EngineUnderTest(engine, models, manifests)


async def test_vllm_loads_an_exported_policy(case: EngineUnderTest) -> None:
    turn = await case.generate(PROMPT, max_tokens=60)
    assert case.disagreement(PROMPT, turn, 0) <= AGREEMENT_NATS


async def test_at_step_zero_engine_and_trainer_agree(case: EngineUnderTest) -> None:
    assert (await case.update(0)).probe_error <= AGREEMENT_NATS
    turn = await case.generate(PROMPT, max_tokens=60)
    assert case.disagreement(PROMPT, turn, 0) <= AGREEMENT_NATS


async def test_after_ten_updates_in_flight_every_token_is_its_versions_own(case: EngineUnderTest) -> None:
    """With recomputed KV a segment's log-probabilities are exactly those of its version, from its first token on."""
    calls = [asyncio.create_task(case.generate(PROMPT[n:], max_tokens=400, seed=n)) for n in range(24)]
    for number in range(1, 11):
        start = case.engine.status().generated_tokens
        while case.engine.status().generated_tokens < start + 24 * 3:
            assert not all(call.done() for call in calls), "the updates must hit running requests"
            await asyncio.sleep(0.005)
        await case.update(number)
    turns = await asyncio.gather(*calls)
    crossings = 0
    for n, turn in enumerate(turns):
        assert len(turn.token_ids) == 400
        ends = [segment.start for segment in turn.segments[1:]] + [400]
        crossings += len(turn.segments) - 1
        for segment, end in zip(turn.segments, ends, strict=True):
            part = replace(
                turn, token_ids=turn.token_ids[segment.start : end], logprobs=turn.logprobs[segment.start : end]
            )
            prompt = (*PROMPT[n:], *turn.token_ids[: segment.start])
            error = case.disagreement(prompt, part, segment.version)
            assert error <= AGREEMENT_NATS, (
                f"tokens {segment.start} to {end} of version {segment.version}: {error:.2g}"
            )
    assert crossings >= 24 * 8
    after = await case.generate(PROMPT, max_tokens=100)
    assert case.disagreement(PROMPT, after, 10) <= AGREEMENT_NATS


async def test_weights_that_do_not_reproduce_the_probe_end_the_engine(
    case: EngineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests hold the bytes; the probe shows that they took effect. No token of unproven weights gets out."""
    manifest = case.manifests[11]
    wrong = replace(manifest.probe, logprobs=tuple(value - 0.001 for value in manifest.probe.logprobs))
    prove = VllmEngine._prove

    async def prove_late(self: VllmEngine, manifest: WeightsManifest) -> float:
        """Time enough for requests to finish with the new weights: their results must be held back."""
        before = case.engine.status().running
        async with asyncio.timeout(30):
            while case.engine.status().running > before - 5:  # noqa: ASYNC110 (the engine offers no event)
                await asyncio.sleep(0.01)
        return await prove(self, manifest)

    monkeypatch.setattr(VllmEngine, "_prove", prove_late)
    calls = [asyncio.create_task(case.generate(PROMPT, max_tokens=400 - n, seed=n)) for n in range(0, 360, 6)]
    await asyncio.sleep(0.1)
    with pytest.raises(WeightUpdateFailed, match=r"does not reproduce the probe .* 0\.001 nats, 0\.0001 is allowed"):
        await case.engine.update(replace(manifest, probe=wrong))
    late = asyncio.create_task(case.generate(PROMPT))
    outcomes = await asyncio.gather(*calls, late, return_exceptions=True)
    for outcome in outcomes:
        if not isinstance(outcome, EngineDied):
            assert not isinstance(outcome, BaseException)
            assert {segment.version for segment in outcome.segments} == {10}
    assert isinstance(outcomes[-1], EngineDied)
    assert sum(isinstance(outcome, EngineDied) for outcome in outcomes) > 1
    assert case.version == 10
    assert not [child for child in psutil.Process().children(recursive=True) if "EngineCore" in child.name()]
