"""One vLLM engine through its life: agreement, updates in flight, corrupt versions, and its death.

The weights go through the real publisher and a real S3 server. The tests run in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.vllm_arguments import MAX_BATCHED_TOKENS
from driftline.engine.vllm_engine import VllmEngine
from driftline.engine.vllm_update import Swap
from driftline.errors import ConfigurationError, EngineDied, EngineStartFailed, WeightUpdateFailed
from driftline.store.run_store import RunStore
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import publish, save, tiny_llama
from tests.support.vllm import AGREEMENT_NATS, EngineUnderTest, engine_parameters, running_engine, served_engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

RUN = "updates"
INSIDE = "what is tested lies inside of the server, which hosts the engine tested in this process"
VERSIONS = 14
IN_FLIGHT = 64
PROMPT = tuple(range(3, 43)) * 2
"""80 tokens: two full KV blocks, which the prefix cache can reuse."""


@pytest.fixture(scope="module", params=[running_engine, served_engine])
def started(request: pytest.FixtureRequest) -> Any:
    """The same engine in this process, and in a server process of its own."""
    return request.param


@pytest.fixture(scope="module")
def run_store(seaweed: Seaweed, started: Any) -> RunStore:
    return RunStore(seaweed.store(), f"{RUN}-{started.__name__}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def case(
    seaweed: Seaweed, run_store: RunStore, started: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineUnderTest]:
    models = [tiny_llama(seed) for seed in range(VERSIONS)]
    manifests = [publish(model, run_store, number) for number, model in enumerate(models)]
    model_dir = save(models[0], tmp_path_factory.mktemp("model"))
    async with started(engine_parameters(), model_dir, run_store.run, seaweed.settings) as engine:
        yield EngineUnderTest(engine, models, manifests)


async def test_before_the_first_version_tokens_are_stamped_as_unversioned(case: EngineUnderTest) -> None:
    turn = await case.generate(PROMPT, max_tokens=3)
    assert [(segment.start, segment.version) for segment in turn.segments] == [(0, -1)]
    assert case.disagreement(PROMPT, turn, 0) <= AGREEMENT_NATS, "the model directory's own weights"


async def test_at_step_zero_engine_and_trainer_agree(case: EngineUnderTest) -> None:
    report = await case.update(0)
    assert report.applied
    assert report.probe_error <= AGREEMENT_NATS
    turns = await asyncio.gather(*(case.generate(PROMPT[n:], max_tokens=100, seed=n) for n in range(32)))
    assert max(case.disagreement(PROMPT[n:], turn, 0) for n, turn in enumerate(turns)) <= AGREEMENT_NATS
    scored = await case.engine.score([*PROMPT, *turns[0].token_ids])
    assert scored[len(PROMPT) - 1 :] == pytest.approx(turns[0].logprobs, abs=AGREEMENT_NATS)


async def test_a_prefix_is_reused_within_a_version_and_never_across_two(case: EngineUnderTest) -> None:
    """prime-rl#1650, NeMo-RL#4018, lmdeploy#4917: the prefix cache of the old weights is reused."""
    await case.generate(PROMPT)
    before = case.engine.status()
    again = await case.generate(PROMPT)
    reused = case.engine.status()
    assert reused.prefix_hit_share > before.prefix_hit_share, "the cache works"
    assert case.disagreement(PROMPT, again, 0) <= AGREEMENT_NATS
    await case.update(1)
    fresh = await case.generate(PROMPT)
    assert case.disagreement(PROMPT, fresh, 1) <= AGREEMENT_NATS, "as an engine that never saw the old weights"
    assert case.engine.status().prefix_hit_share < reused.prefix_hit_share, "nothing was found in the cache"


async def test_ten_updates_in_flight_lose_nothing_and_keep_agreement(
    case: EngineUnderTest, record_property: Any
) -> None:
    """Episodes go on; their tokens are stamped with the version that sampled them."""
    updates_done = asyncio.Event()
    turns: list[tuple[tuple[int, ...], Any]] = []

    async def episode(n: int) -> None:
        round_ = 0
        while not updates_done.is_set():
            prompt = PROMPT[n % 40 :]
            turns.append((prompt, await case.generate(prompt, max_tokens=150, seed=1000 * n + round_)))
            round_ += 1

    episodes = [asyncio.create_task(episode(n)) for n in range(IN_FLIGHT)]
    running: list[int] = []
    for number in range(2, 12):
        while case.engine.status().running < IN_FLIGHT // 2:  # noqa: ASYNC110 (the engine offers no event)
            await asyncio.sleep(0.01)
        running.append(case.engine.status().running)
        assert (await case.update(number)).applied
    updates_done.set()
    await asyncio.gather(*episodes)

    assert len(turns) >= IN_FLIGHT
    assert all(len(turn.token_ids) == 150 and turn.finish_reason == "length" for _, turn in turns)
    stamps = [[segment.version for segment in turn.segments] for _, turn in turns]
    assert all(stamp == sorted(set(stamp)) for stamp in stamps)
    assert {number for stamp in stamps for number in stamp} >= {1, 2, 10, 11}
    crossed = [(prompt, turn) for prompt, turn in turns if len(turn.segments) > 1]
    assert len(crossed) >= IN_FLIGHT
    for prompt, turn in crossed:
        first, second = turn.segments[0], turn.segments[1]
        assert (first.start, second.version > first.version) == (0, True)
        old = case.disagreement(prompt, turn, first.version, second.start)
        assert old <= AGREEMENT_NATS, f"before the boundary the old version speaks ({old:.2g})"
    left = [case.disagreement(p, t, t.segments[0].version, t.segments[1].start + 1) for p, t in crossed]
    assert sorted(left)[len(left) // 10] > AGREEMENT_NATS, "at the boundary they leave the old version"

    turns_after = await asyncio.gather(*(case.generate(PROMPT[n:], max_tokens=100, seed=n) for n in range(32)))
    worst = max(case.disagreement(PROMPT[n:], turn, 11) for n, turn in enumerate(turns_after))
    assert worst <= AGREEMENT_NATS, "after ten updates in flight"
    pauses = sorted(report.pause_s for report in case.reports[-10:])
    record_property("pauses", case.pauses)
    assert pauses[len(pauses) // 2] < 0.2, case.pauses
    assert max(report.probe_error for report in case.reports) <= AGREEMENT_NATS


async def test_a_long_version_gap_is_no_obstacle_and_twice_is_once(case: EngineUnderTest) -> None:
    """prime-rl#1667, #1671: a skipped version deadlocks. An older version may follow, too (evaluation)."""
    assert (await case.update(4)).applied
    assert (await case.update(12)).applied
    turn = await case.generate(PROMPT)
    again = await case.update(12)
    assert (again.applied, again.pause_s) == (False, 0.0)
    assert (await case.generate(PROMPT)).logprobs == pytest.approx(turn.logprobs, abs=AGREEMENT_NATS)
    assert case.disagreement(PROMPT, turn, 12) <= AGREEMENT_NATS


@pytest.mark.parametrize("damage", ["flipped bit", "missing object", "tampered digest"])
async def test_a_corrupt_version_is_refused_and_the_old_one_serves_on(
    case: EngineUnderTest, run_store: RunStore, damage: str
) -> None:
    manifest = case.manifests[13]
    key, wanted = manifest.files[0].key, manifest.files[0].key
    body = run_store.store.get(key).body
    if damage == "flipped bit":
        run_store.store.put(key, body[:-1] + bytes([body[-1] ^ 1]))
    elif damage == "missing object":
        run_store.store.delete([key])
    else:
        wanted = "model.norm.weight"
        manifest = replace(manifest, tensors={**manifest.tensors, wanted: "0" * 64})
    in_flight = asyncio.create_task(case.generate(PROMPT, max_tokens=60))
    with pytest.raises(WeightUpdateFailed, match=wanted):
        await case.engine.update(manifest)
    run_store.store.put(key, body)
    assert case.version == 12
    for turn in (await in_flight, await case.generate(PROMPT)):
        assert [segment.version for segment in turn.segments] == [12]
        assert case.disagreement(PROMPT, turn, 12) <= AGREEMENT_NATS


async def test_manifests_that_are_not_for_this_engine_are_refused(case: EngineUnderTest) -> None:
    manifest = case.manifests[13]
    with pytest.raises(WeightUpdateFailed, match="belongs to run 'another'"):
        await case.engine.update(replace(manifest, run="another"))
    with pytest.raises(WeightUpdateFailed, match="newer format"):
        await case.engine.update(replace(manifest, format=99))
    with pytest.raises(WeightUpdateFailed, match="no probe"):
        await case.engine.update(replace(manifest, probe=replace(manifest.probe, token_ids=(), logprobs=())))
    lacking = {name: digest for name, digest in manifest.tensors.items() if "layers.1" not in name}
    with pytest.raises(WeightUpdateFailed, match=r"have .*layers\.1.* besides"):
        await case.engine.update(replace(manifest, tensors=lacking))
    assert case.disagreement(PROMPT, await case.generate(PROMPT), 12) <= AGREEMENT_NATS


async def test_a_load_that_fails_once_is_done_again_from_the_start(
    case: EngineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is half prepared for new weights then; nothing is sampled until it holds them."""
    if not isinstance(case.engine, VllmEngine):
        await case.update(13)
        pytest.skip(INSIDE)
    staged: list[int] = []
    stage = Swap.stage

    async def forget_once(self: Swap, manifest: Any) -> float:
        staged.append(manifest.version.number)
        return 0.0 if len(staged) == 1 else await stage(self, manifest)

    monkeypatch.setattr(Swap, "stage", forget_once)
    in_flight = asyncio.create_task(case.generate(PROMPT, max_tokens=100))
    await asyncio.sleep(0.1)
    report = await case.update(13)
    assert staged == [13, 13]
    assert report.applied
    assert report.probe_error <= AGREEMENT_NATS
    assert [segment.version for segment in (await in_flight).segments] == [12, 13]
    assert case.disagreement(PROMPT, await case.generate(PROMPT), 13) <= AGREEMENT_NATS


async def test_a_cancelled_update_is_finished_all_the_same(case: EngineUnderTest) -> None:
    update = asyncio.create_task(case.engine.update(case.manifests[1]))
    await asyncio.sleep(0.02)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    async with asyncio.timeout(20):
        while case.version != 1:  # noqa: ASYNC110 (nobody waits for a cancelled update)
            await asyncio.sleep(0.02)
    assert case.disagreement(PROMPT, await case.generate(PROMPT), 1) <= AGREEMENT_NATS


async def test_requests_that_vllm_refuses_are_configuration_errors(case: EngineUnderTest) -> None:
    with pytest.raises(ConfigurationError, match="max_model_len"):
        await case.generate(PROMPT, max_tokens=512)
    for ids in ([], [43], [3, -1]):
        with pytest.raises(ConfigurationError, match="outside of the model's 43"):
            await case.generate(ids)
    with pytest.raises(ConfigurationError, match="temperature"):
        await case.engine.generate(GenerationRequest("hot", PROMPT, 4, (), 2.5, seed=1))
    assert len((await case.generate(PROMPT, max_tokens=4)).token_ids) == 4


async def test_seeded_prompts_that_are_cut_into_chunks_draw_as_they_would_alone(case: EngineUnderTest) -> None:
    """60 prompts of 400 tokens exceed one engine step; unmended, vLLM's CPU engine dies of a seeded one."""
    prompts = [[3 + (n + step * (1 + n % 7)) % 40 for step in range(400)] for n in range(60)]
    assert sum(map(len, prompts)) > MAX_BATCHED_TOKENS
    together = await asyncio.gather(*(case.generate(p, max_tokens=8, seed=n) for n, p in enumerate(prompts)))
    alone: list[Generation] = []
    for start in range(0, 60, 20):
        part = range(start, start + 20)
        alone += await asyncio.gather(*(case.generate(prompts[n], max_tokens=8, seed=n) for n in part))
    assert [turn.token_ids for turn in together] == [turn.token_ids for turn in alone]


async def test_lower_priority_numbers_run_first(case: EngineUnderTest) -> None:
    finished: list[int] = []

    async def request(n: int, priority: int) -> None:
        await case.generate(PROMPT, max_tokens=120, seed=n, priority=priority)
        finished.append(priority)

    await asyncio.gather(*(request(n, 5 if n < 200 else 0) for n in range(256)))
    last_urgent = max(n for n, priority in enumerate(finished) if priority == 0)
    assert last_urgent < 200, "56 urgent requests came last, behind 200 others for 128 places"


async def test_another_run_is_served_from_its_own_weights_and_counts_from_zero(
    case: EngineUnderTest, seaweed: Seaweed
) -> None:
    if not isinstance(case.engine, VllmEngine):
        pytest.skip(INSIDE)
    held = case.engine.status().version
    assert held is not None
    other = RunStore(seaweed.store(), "another")
    model = tiny_llama(77)
    manifest = publish(model, other, held.number)
    await case.generate(PROMPT, max_tokens=3)
    with pytest.raises(WeightUpdateFailed, match="another"):
        await case.engine.update(manifest)

    going = asyncio.create_task(case.generate(PROMPT, max_tokens=200))
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError, match="await its requests"):
        await case.engine.serve_run("another")
    await going
    await case.engine.serve_run("another")
    status = case.engine.status()
    assert (status.version, status.generated_tokens, status.scored_tokens) == (None, 0, 0)
    report = await case.engine.update(manifest)
    assert report.applied
    assert report.loaded is not None
    assert report.loaded.deltas == 0
    case.models.append(model)
    turn = await case.generate(PROMPT, max_tokens=16)
    assert case.disagreement(PROMPT, turn, len(case.models) - 1) <= AGREEMENT_NATS, "no prefix of the run before"
    status = case.engine.status()
    assert status.generated_tokens == len(turn.token_ids) + status.scored_tokens
    await case.engine.serve_run(case.manifests[0].run)
    await case.update(held.number)


async def test_an_engine_that_is_killed_fails_everything_and_close_leaves_nothing(case: EngineUnderTest) -> None:
    """SkyRL#1691, #1173: the engine dies and the run hangs."""
    cores = [child for child in psutil.Process().children(recursive=True) if "EngineCore" in child.name()]
    assert len(cores) == 1, cores
    calls: list[asyncio.Task[Any]] = [
        asyncio.create_task(case.generate(PROMPT, max_tokens=400, seed=n)) for n in range(8)
    ]
    calls.append(asyncio.create_task(case.engine.update(case.manifests[2])))
    await asyncio.sleep(0.05)
    os.kill(cores[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begun < 5
    assert {type(outcome) for outcome in outcomes} == {EngineDied}
    with pytest.raises(EngineDied, match="its process ended"):
        await case.generate(PROMPT)
    with pytest.raises(EngineDied):
        await case.engine.score(PROMPT)
    await case.engine.close()
    assert time.monotonic() - begun < 10
    left = [child for child in psutil.Process().children(recursive=True) if "EngineCore" in child.name()]
    assert left == []


async def test_what_vllm_refuses_at_start_is_told_with_its_reason(tmp_path: Path, seaweed: Seaweed) -> None:
    model_dir = save(tiny_llama(0), tmp_path)
    config = model_dir / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "NoSuchModel").replace('"llama"', '"nosuch"'))
    with pytest.raises(EngineStartFailed, match="nosuch"):
        async with running_engine(engine_parameters(), model_dir, RUN, seaweed.settings):
            pass


async def test_a_directory_that_is_no_model_is_refused_before_anything_starts(
    tmp_path: Path, seaweed: Seaweed
) -> None:
    with pytest.raises(EngineStartFailed, match=r"config\.json is missing"):
        async with running_engine(engine_parameters(), tmp_path, RUN, seaweed.settings):
            pass
    model_dir = save(tiny_llama(0, positions=64), tmp_path)
    with pytest.raises(ConfigurationError, match=r"engine\.max_model_len is 512.*lower it to 64"):
        async with running_engine(engine_parameters(), model_dir, RUN, seaweed.settings):
            pass
