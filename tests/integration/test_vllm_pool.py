"""Two real vLLM servers behind one protocol: prefixes, versions, a server that is killed, and what it had counted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from driftline.engine.making import make_engines
from driftline.engine.protocol import Engine, Generation, GenerationRequest
from driftline.store.run_store import RunStore
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import publish, reference_logprobs, save, tiny_llama
from tests.support.vllm import AGREEMENT_NATS, engine_parameters, vllm_environment

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

RUN = "pool"
MODELS = [tiny_llama(seed) for seed in range(2)]
PROMPT = tuple(range(3, 43)) * 2
GROUPS = 8
TOKENS = 32


def _servers() -> list[psutil.Process]:
    """The server processes that this process has started."""
    return [one for one in psutil.Process().children() if "driftline.engine.server" in " ".join(one.cmdline())]


def _request(group: int, turn: int = 0, max_tokens: int = TOKENS) -> GenerationRequest:
    return GenerationRequest(
        f"g{group}.{turn}", (*PROMPT, group + 3), max_tokens, (), 1.0, group, affinity=(f"{group}.0.1", f"{group}")
    )


@pytest.fixture(scope="module")
def run_store(seaweed: Seaweed) -> RunStore:
    return RunStore(seaweed.store(), RUN)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(
    seaweed: Seaweed, run_store: RunStore, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    params = engine_parameters(backend="vllm_server", replicas=2, max_num_seqs=16)
    model_dir = save(MODELS[0], tmp_path_factory.mktemp("model"))
    with vllm_environment(params):
        engine = make_engines(params, model_dir, RUN, seaweed.settings)
        try:
            await engine.start()
            await engine.update(publish(MODELS[0], run_store, 0))
            yield engine
        finally:
            await engine.close()
    assert not _servers()


async def _all(engine: Engine, turn: int) -> list[Generation]:
    return await asyncio.gather(*(engine.generate(_request(group, turn)) for group in range(GROUPS)))


def _version_of(turns: list[Generation]) -> set[int]:
    return {segment.version for turn in turns for segment in turn.segments}


def _disagreement(turns: list[Generation], model: int) -> float:
    """Largest difference of any token's log-probability to that of a model."""
    worst = 0.0
    for group, turn in enumerate(turns):
        prompt = [*PROMPT, group + 3]
        wanted = reference_logprobs(MODELS[model], [*prompt, *turn.token_ids])[len(prompt) - 1 :]
        worst = max(worst, *(abs(a - b) for a, b in zip(turn.logprobs, wanted, strict=True)))
    return worst


async def test_both_servers_serve_the_version(pool: Engine) -> None:
    assert len(_servers()) == 2
    turns = await _all(pool, 0)
    assert _version_of(turns) == {0}
    assert _disagreement(turns, 0) <= AGREEMENT_NATS


async def test_a_group_finds_its_prefix_where_it_was(pool: Engine) -> None:
    before = pool.status().prefix_hit_share
    await _all(pool, 1)
    assert pool.status().prefix_hit_share > before


async def test_all_take_up_a_version_at_once(pool: Engine, run_store: RunStore) -> None:
    report = await pool.update(publish(MODELS[1], run_store, 1))
    assert report.applied
    turns = await _all(pool, 2)
    assert _version_of(turns) == {1}
    assert _disagreement(turns, 1) <= AGREEMENT_NATS


async def test_a_killed_server_fails_nothing_and_is_replaced_with_the_version(pool: Engine) -> None:
    victim, survivor = _servers()
    generated = pool.status().generated_tokens
    asked = [asyncio.create_task(pool.generate(_request(group, 3, 200))) for group in range(GROUPS)]
    async with asyncio.timeout(60.0):
        while pool.status().generated_tokens < generated + 5 * GROUPS:  # noqa: ASYNC110 (the pool has no event)
            await asyncio.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    turns = await asyncio.gather(*asked)
    assert all(len(turn.token_ids) == 200 for turn in turns)
    assert _version_of(turns) == {1}
    async with asyncio.timeout(500.0):
        while len(_servers()) < 2 or victim.pid in {one.pid for one in _servers()}:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert survivor.is_running()
    turns = await _all(pool, 4)
    assert _version_of(turns) == {1}
    assert _disagreement(turns, 1) <= AGREEMENT_NATS


async def test_every_token_is_in_the_account(pool: Engine) -> None:
    status = pool.status()
    returned = 4 * GROUPS * TOKENS + GROUPS * 200
    assert status.in_flight_tokens == 0
    assert status.generated_tokens == returned + status.scored_tokens + status.discarded_tokens
