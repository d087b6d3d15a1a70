"""N-gram speculation in a real engine: what it samples is the policy's, with the policy's log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch

from driftline.engine.environment_variables import is_cpu_build
from driftline.engine.protocol import Generation, GenerationRequest
from driftline.store.run_store import RunStore
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import publish, save, tiny_llama
from tests.support.vllm import AGREEMENT_NATS, EngineUnderTest, engine_parameters, running_engine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(is_cpu_build(), reason="vLLM 0.32 gives wrong log-probabilities here; it is refused"),
]

RUN = "speculation"
PROMPT = (3, 4, 5, 6, 7, 8) * 6
"""Repeats itself, so that every step has a guess."""
TURNS = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def case(seaweed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineUnderTest]:
    models = [tiny_llama(seed) for seed in range(2)]
    run_store = RunStore(seaweed.store(), RUN)
    manifests = [publish(model, run_store, number) for number, model in enumerate(models)]
    model_dir = save(models[0], tmp_path_factory.mktemp("model"))
    params = engine_parameters(speculative_tokens=3, max_num_seqs=64)
    async with running_engine(params, model_dir, RUN, seaweed.settings) as engine:
        case = EngineUnderTest(engine, models, manifests)
        await case.update(0)
        yield case


async def sample(case: EngineUnderTest, temperature: float, *, max_tokens: int = 60) -> list[Generation]:
    requests = (GenerationRequest(f"s{n}", PROMPT, max_tokens, (), temperature, seed=1000 + n) for n in range(TURNS))
    return list(await asyncio.gather(*map(case.engine.generate, requests)))


async def test_logprobs_are_those_of_the_policy(case: EngineUnderTest) -> None:
    turns = await sample(case, 1.0)
    assert all(len(turn.token_ids) == len(turn.logprobs) == 60 for turn in turns)
    assert all(case.disagreement(PROMPT, turn, 0) <= AGREEMENT_NATS for turn in turns)


async def test_logprobs_are_those_of_the_tempered_policy(case: EngineUnderTest) -> None:
    for turn in (await sample(case, 2.0))[:8]:
        ids = torch.tensor([[*PROMPT, *turn.token_ids]])
        with torch.no_grad():
            logits_TV = case.models[0](ids).logits[0, len(PROMPT) - 1 : -1] / 2.0
        wanted = logits_TV.log_softmax(-1).gather(1, torch.tensor(turn.token_ids)[:, None])[:, 0]
        assert turn.logprobs == pytest.approx(wanted.tolist(), abs=AGREEMENT_NATS)


async def test_greedy_sampling_is_the_policys(case: EngineUnderTest) -> None:
    turn = await case.engine.generate(GenerationRequest("greedy", PROMPT, 60, (), 0.0, seed=1))
    ids = torch.tensor([[*PROMPT, *turn.token_ids]])
    with torch.no_grad():
        best = case.models[0](ids).logits[0, len(PROMPT) - 1 : -1].argmax(-1)
    assert list(turn.token_ids) == best.tolist()


async def test_what_is_sampled_is_distributed_as_the_policy_says(case: EngineUnderTest) -> None:
    """The mean surprise of sampled tokens is the entropy; a sampler that prefers its guesses has less."""
    turns = await sample(case, 1.0)
    surprise, entropy, variance = 0.0, 0.0, 0.0
    for turn in turns:
        ids = torch.tensor([[*PROMPT, *turn.token_ids]])
        with torch.no_grad():
            logprobs_TV = case.models[0](ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
        entropies_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
        surprise -= sum(turn.logprobs)
        entropy += float(entropies_T.sum())
        variance += float(((logprobs_TV.exp() * logprobs_TV**2).sum(-1) - entropies_T**2).sum())
    assert abs(surprise - entropy) <= 4 * variance**0.5


async def test_an_update_takes_effect_and_every_token_is_counted(case: EngineUnderTest) -> None:
    before = case.engine.status()
    calls = asyncio.create_task(sample(case, 1.0, max_tokens=200))
    while case.engine.status().generated_tokens < before.generated_tokens + 500:  # noqa: ASYNC110 (no event)
        await asyncio.sleep(0.01)
    await case.update(1)
    turns = await calls
    assert any([segment.version for segment in turn.segments] == [0, 1] for turn in turns)
    after = case.engine.status()
    scored = after.scored_tokens - before.scored_tokens
    assert after.generated_tokens - before.generated_tokens == TURNS * 200 + scored
    fresh = await sample(case, 1.0)
    assert all(case.disagreement(PROMPT, turn, 1) <= AGREEMENT_NATS for turn in fresh)
