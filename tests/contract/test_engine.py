"""What every engine must do. `EngineContract` runs over the scripted engine here; other engines subclass it.

The module of the subclass gives a fixture `case` (scope and loop scope `module`). The tests run in order, over one
engine, whose policy version grows; the last one closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import pytest_asyncio

from driftline.engine.protocol import Engine, EngineStatus, Generation, GenerationRequest
from driftline.engine.scripted import ScriptedEngine
from driftline.errors import ConfigurationError, EngineError
from driftline.records import PolicyVersion, Probe, WeightsManifest

WAIT_S = 60.0


@dataclass
class EngineCase:
    """An engine that has started and holds `version`, and what the tests must know about it."""

    engine: Engine
    manifest: Callable[[int], WeightsManifest]
    """Manifest of the n-th version, whose weights differ from those of all others."""
    vocabulary: int
    max_model_len: int
    prompt: tuple[int, ...]
    tolerance: float = 1e-4
    """Largest difference in nats between log-probabilities sampled and scored."""
    version: int = 0
    requests: int = field(default=0)

    def request(
        self,
        *,
        max_tokens: int = 16,
        stop_ids: Sequence[int] = (),
        temperature: float = 1.0,
        seed: int = 1,
        prompt: Sequence[int] | None = None,
    ) -> GenerationRequest:
        self.requests += 1
        return GenerationRequest(
            id=f"contract-{self.requests}",
            prompt_ids=tuple(prompt or self.prompt),
            max_tokens=max_tokens,
            stop_ids=tuple(stop_ids),
            temperature=temperature,
            seed=seed,
        )

    async def generate(self, **options: object) -> Generation:
        async with asyncio.timeout(WAIT_S):
            return await self.engine.generate(self.request(**options))  # pyright: ignore[reportArgumentType]

    async def update(self) -> None:
        async with asyncio.timeout(WAIT_S):
            report = await self.engine.update(self.manifest(self.version + 1))
        assert report.applied
        self.version += 1


async def until(condition: Callable[[EngineStatus], bool], engine: Engine) -> None:
    """Wait until the engine's status fulfils a condition."""
    async with asyncio.timeout(WAIT_S):
        while not condition(engine.status()):  # noqa: ASYNC110 (the engine offers no event)
            await asyncio.sleep(0)


@pytest.mark.asyncio(loop_scope="module")
class EngineContract:
    """The contract of `driftline.engine.protocol.Engine`."""

    async def test_without_a_stop_it_samples_max_tokens(self, case: EngineCase) -> None:
        turn = await case.generate(max_tokens=11)
        assert turn.finish_reason == "length"
        assert len(turn.token_ids) == len(turn.logprobs) == 11
        assert all(0 <= token < case.vocabulary for token in turn.token_ids)
        assert all(logprob <= 0 for logprob in turn.logprobs)
        assert min(turn.queued_s, turn.prefill_s, turn.decode_s) >= 0

    async def test_it_stops_after_a_stop_id_which_is_part_of_the_turn(self, case: EngineCase) -> None:
        free = await case.generate(max_tokens=12, seed=5)
        stop = free.token_ids[6]
        first = free.token_ids.index(stop)
        turn = await case.generate(max_tokens=12, seed=5, stop_ids=[stop])
        assert turn.finish_reason == "stop"
        assert turn.token_ids == free.token_ids[: first + 1]
        assert len(turn.logprobs) == first + 1

    async def test_the_same_seed_draws_the_same_tokens_and_another_seed_others(self, case: EngineCase) -> None:
        first, again, other = [await case.generate(seed=seed) for seed in (3, 3, 4)]
        assert first.token_ids == again.token_ids
        assert first.token_ids != other.token_ids

    async def test_temperature_zero_is_greedy_whatever_the_seed(self, case: EngineCase) -> None:
        first, other = [await case.generate(temperature=0.0, seed=seed) for seed in (3, 4)]
        assert first.token_ids == other.token_ids

    async def test_score_reproduces_the_sampled_logprobs(self, case: EngineCase) -> None:
        turn = await case.generate(max_tokens=20, seed=8)
        scored = await case.engine.score([*case.prompt, *turn.token_ids])
        assert len(scored) == len(case.prompt) + 20 - 1
        assert scored[len(case.prompt) - 1 :] == pytest.approx(turn.logprobs, abs=case.tolerance)

    async def test_logprobs_are_those_of_the_tempered_distribution(self, case: EngineCase) -> None:
        """trl#4159: a temperature on one side only."""
        hot = await case.generate(max_tokens=20, seed=8, temperature=2.0)
        scored = await case.engine.score([*case.prompt, *hot.token_ids])
        assert scored[len(case.prompt) - 1 :] != pytest.approx(hot.logprobs, abs=0.05)

    async def test_many_requests_at_once_each_get_their_own_turn(self, case: EngineCase) -> None:
        alone = [await case.generate(max_tokens=4 + n, seed=n) for n in range(12)]
        together = await asyncio.gather(*(case.generate(max_tokens=4 + n, seed=n) for n in range(12)))
        assert [turn.token_ids for turn in together] == [turn.token_ids for turn in alone]

    async def test_a_prompt_that_leaves_no_room_is_refused(self, case: EngineCase) -> None:
        too_long = [case.prompt[0]] * case.max_model_len
        with pytest.raises(ConfigurationError, match="max_model_len"):
            await case.generate(max_tokens=4, prompt=too_long)

    async def test_counters_count_and_never_fall(self, case: EngineCase) -> None:
        before = case.engine.status()
        await case.generate(max_tokens=9)
        after = case.engine.status()
        assert after.generated_tokens == before.generated_tokens + 9
        assert after.prompt_tokens == before.prompt_tokens + len(case.prompt)
        assert after.preemptions >= before.preemptions

    async def test_cancelling_a_call_aborts_it_and_the_engine_goes_on(self, case: EngineCase) -> None:
        length = case.max_model_len - len(case.prompt)
        calls = [asyncio.create_task(case.generate(max_tokens=length, seed=n)) for n in range(3)]
        await until(lambda status: status.running > 0, case.engine)
        for call in calls:
            call.cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        await until(lambda status: status.running + status.waiting == 0, case.engine)
        assert len((await case.generate(max_tokens=5)).token_ids) == 5

    async def test_an_update_changes_the_policy_and_its_stamp(self, case: EngineCase) -> None:
        before = await case.generate(seed=6)
        scored_before = await case.engine.score(case.prompt)
        await case.update()
        status = case.engine.status()
        assert status.version is not None
        assert status.version.number == case.version
        after = await case.generate(seed=6)
        assert [segment.version for segment in before.segments] == [case.version - 1]
        assert [segment.version for segment in after.segments] == [case.version]
        assert await case.engine.score(case.prompt) != pytest.approx(scored_before, abs=case.tolerance)
        scored = await case.engine.score([*case.prompt, *after.token_ids])
        assert scored[len(case.prompt) - 1 :] == pytest.approx(after.logprobs, abs=case.tolerance)

    async def test_applying_the_version_that_is_held_changes_nothing(self, case: EngineCase) -> None:
        """prime-rl#1667, #1671: applying twice."""
        scored = await case.engine.score(case.prompt)
        report = await case.engine.update(case.manifest(case.version))
        assert not report.applied
        assert report.version.number == case.version
        assert await case.engine.score(case.prompt) == pytest.approx(scored, abs=case.tolerance)

    async def test_requests_in_flight_survive_an_update_and_say_who_sampled_what(self, case: EngineCase) -> None:
        """prime-rl#3050: the stamp belongs to the tokens, and advances when the engine has the weights."""
        length = case.max_model_len - len(case.prompt)
        calls = [asyncio.create_task(case.generate(max_tokens=length, seed=n)) for n in range(4)]
        start = case.engine.status().generated_tokens
        await until(lambda status: status.generated_tokens >= start + 8, case.engine)
        await case.update()
        turns = await asyncio.gather(*calls)
        assert all(len(turn.token_ids) == length for turn in turns)
        assert any(len(turn.segments) == 2 for turn in turns)
        for turn in turns:
            assert turn.segments[0].start == 0
            assert all(a.start < b.start and a.version < b.version for a, b in pairwise(turn.segments))
            assert {segment.version for segment in turn.segments} <= {case.version - 1, case.version}

    async def test_every_token_is_in_flight_returned_discarded_or_scored_at_every_moment(
        self, case: EngineCase
    ) -> None:
        """What the token ledger rests on: counts apart from one another that add up whenever they are read."""
        length, returned = case.max_model_len - len(case.prompt), [0]

        def unaccounted() -> int:
            status = case.engine.status()
            assert min(status.in_flight_tokens, status.discarded_tokens, status.scored_tokens) >= 0
            apart = status.in_flight_tokens + status.discarded_tokens + status.scored_tokens
            return status.generated_tokens - apart - returned[0]

        async def ask(seed: int) -> None:
            turn = await case.generate(max_tokens=length - seed, seed=seed)
            returned[0] += len(turn.token_ids)

        before, start = unaccounted(), case.engine.status()
        calls = [asyncio.create_task(ask(seed)) for seed in range(24)]
        most_in_flight = 0
        async with asyncio.timeout(WAIT_S):
            while not all(call.done() for call in calls):
                await asyncio.sleep(0)
                status = case.engine.status()
                most_in_flight = max(most_in_flight, status.in_flight_tokens)
                if status.generated_tokens >= start.generated_tokens + 24 * 8:
                    for call in calls[:8]:
                        call.cancel()
                    await case.engine.score(case.prompt)
                assert unaccounted() == before
        assert most_in_flight > 100
        await case.update()
        end = case.engine.status()
        assert unaccounted() == before
        assert end.in_flight_tokens == 0
        assert end.discarded_tokens - start.discarded_tokens >= 8 * 4
        assert returned[0] == sum(length - seed for seed in range(8, 24))

    async def test_close_ends_what_is_in_flight_and_may_be_repeated(self, case: EngineCase) -> None:
        call = asyncio.create_task(case.generate(max_tokens=case.max_model_len - len(case.prompt)))
        await until(lambda status: status.running + status.waiting > 0, case.engine)
        async with asyncio.timeout(WAIT_S):
            await case.engine.close()
            await case.engine.close()
            with pytest.raises(EngineError):
                await call
            with pytest.raises(EngineError):
                await case.generate()


def scripted_manifest(number: int) -> WeightsManifest:
    return WeightsManifest(
        run="contract",
        version=PolicyVersion(number, 1),
        kind="anchor",
        base=None,
        files=(),
        tensors={},
        dtype="float32",
        probe=Probe((), ()),
        created_unix=0.0,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def case() -> AsyncIterator[EngineCase]:
    engine = ScriptedEngine(vocabulary=43, max_model_len=128)
    await engine.start()
    await engine.update(scripted_manifest(0))
    yield EngineCase(engine, scripted_manifest, 43, 128, prompt=(3, 17, 18, 2))
    await engine.close()


class TestScriptedEngine(EngineContract):
    """The contract over the scripted engine."""
