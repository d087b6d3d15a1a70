"""A vLLM engine with tied embeddings, whose running requests are recomputed at an update.

It starts from an exported model directory. After an update the CPU backend keeps the old packed output head
unless it is told otherwise, and nothing fails: only the comparison with the trainer's model shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import pytest_asyncio

from driftline.engine.protocol import LoadReport
from driftline.engine.vllm_engine import VllmEngine
from driftline.engine.vllm_update import Swap
from driftline.errors import EngineDied, WeightUpdateFailed
from driftline.records import AdapterLayout, Head, ModelSource, PolicyVersion, RunDescription, WeightsManifest
from driftline.store.files import download, upload_directory
from driftline.store.run_store import RunStore
from driftline.weights.export import export_run
from driftline.weights.publisher import WeightsPublisher
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import probe_of, publish, reference_logprobs, save, tiny_llama
from tests.support.vllm import AGREEMENT_NATS, EngineUnderTest, engine_parameters, running_engine
from tests.support.weight_chain import WeightChain, random_adapters, with_adapters

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


@pytest.fixture(scope="module")
def chain(seaweed: Seaweed) -> WeightChain:
    """Versions 100 to 107: an anchor and seven deltas, the fifth of them of embeddings alone."""
    chain = WeightChain(tiny_llama(50, tied=True), RunStore(seaweed.store(), RUN), 100)
    for number in range(1, 8):
        chain.step(only="embed_tokens" if number == 5 else "")
    assert [manifest.kind for manifest in chain.manifests.values()] == ["anchor"] + ["delta"] * 7
    return chain


async def check(case: EngineUnderTest, model: Any) -> None:
    turn = await case.generate(PROMPT, max_tokens=60)
    wanted = reference_logprobs(model, [*PROMPT, *turn.token_ids])[len(PROMPT) - 1 :]
    assert turn.logprobs == pytest.approx(wanted, abs=AGREEMENT_NATS)


async def apply(case: EngineUnderTest, manifest: WeightsManifest, model: Any, deltas: int) -> LoadReport:
    """Take up a version, see that engine and trainer agree, and say what was loaded."""
    report = await case.engine.update(manifest)
    assert report.applied
    assert report.probe_error <= AGREEMENT_NATS
    assert report.loaded is not None
    assert report.loaded.deltas == deltas
    await check(case, model)
    return report.loaded


async def test_a_late_engine_takes_the_anchor_and_the_deltas_after_it(
    case: EngineUnderTest, chain: WeightChain
) -> None:
    loaded = await apply(case, chain.manifests[103], chain.models[103], deltas=3)
    assert loaded.loaded_bytes == loaded.model_bytes == 2 * chain.manifests[103].elements


async def test_a_delta_loads_what_changed_and_versions_may_be_skipped(
    case: EngineUnderTest, chain: WeightChain
) -> None:
    """Published in bfloat16, served in float32: log-probabilities agree as closely as in float32."""
    calls = [asyncio.create_task(case.generate(PROMPT[n:], max_tokens=300, seed=n)) for n in range(8)]
    loaded = await apply(case, chain.manifests[104], chain.models[104], deltas=1)
    assert loaded.changed_elements == chain.manifests[104].changed_elements
    assert loaded.loaded_bytes < loaded.model_bytes, "of the embeddings only the changed elements"
    embeddings = await apply(case, chain.manifests[105], chain.models[105], deltas=1)
    assert embeddings.changed_elements == chain.manifests[105].changed_elements
    assert embeddings.loaded_bytes == 2 * embeddings.changed_elements, "set in place, and no layer rebuilt"
    await apply(case, chain.manifests[107], chain.models[107], deltas=2)
    assert all(len(turn.token_ids) == 300 for turn in await asyncio.gather(*calls))


async def test_an_older_version_comes_from_the_anchor(case: EngineUnderTest, chain: WeightChain) -> None:
    await apply(case, chain.manifests[101], chain.models[101], deltas=1)


async def test_a_delta_missing_in_the_chain_is_refused_and_the_old_version_serves_on(
    case: EngineUnderTest, chain: WeightChain
) -> None:
    store, key = chain.run_store.store, chain.manifests[102].files[0].key
    body = store.get(key).body
    store.delete([key])
    with pytest.raises(WeightUpdateFailed, match=f"ObjectMissing.*{key}"):
        await case.engine.update(chain.manifests[104])
    await check(case, chain.models[101])
    store.put(key, body)
    loaded = await apply(case, chain.manifests[104], chain.models[104], deltas=4)
    assert loaded.loaded_bytes == loaded.model_bytes, "what was held had been changed by the try"


async def test_a_half_applied_delta_is_done_again_from_the_anchor(
    case: EngineUnderTest, chain: WeightChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers are prepared for new weights, and the load fails: nothing of it is served."""
    stage, tries = Swap.stage, list[WeightsManifest]()

    async def another_at_first(self: Swap, manifest: WeightsManifest) -> float:
        tries.append(manifest)
        return await stage(self, chain.manifests[106] if len(tries) == 1 else manifest)

    monkeypatch.setattr(Swap, "stage", another_at_first)
    loaded = await apply(case, chain.manifests[105], chain.models[105], deltas=5)
    assert len(tries) == 2
    assert loaded.loaded_bytes == loaded.model_bytes


async def test_adapters_alone_travel_and_are_folded_into_the_base(case: EngineUnderTest, seaweed: Seaweed) -> None:
    base, run_store = case.models[0], RunStore(seaweed.store(), RUN)
    layout = AdapterLayout(rank=4, alpha=8.0, base="tied-base")
    publisher = WeightsPublisher(run_store, dtype="float32", adapter=layout)
    previous: WeightsManifest | None = None
    for number, seed in ((200, 1), (201, 2)):
        adapters = random_adapters(base, ("q_proj", "down_proj"), layout, seed)
        model = with_adapters(base, adapters, layout)
        probe, version = probe_of(model), PolicyVersion(number, 1)
        previous = publisher.publish(
            adapters.items(), version=version, probe=probe, previous=previous, expect_change=number > 200
        )
        await apply(case, previous, model, deltas=0)
        assert sum(file.bytes for file in previous.files) < 0.1 * 4 * sum(p.numel() for p in base.parameters())


async def test_after_ten_updates_in_flight_every_token_is_its_versions_own(case: EngineUnderTest) -> None:
    """With recomputed KV a segment's log-probabilities are exactly those of its version, from its first token on."""
    await case.update(0)
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
