from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from driftline.engine.protocol import GenerationRequest
from driftline.engine.scripted import ScriptedEngine
from driftline.environment import Message, StepResult
from driftline.errors import EngineDied
from driftline.records import Segment, Trajectory
from driftline.rollout.episode import Episode
from driftline.rollout.guard import EnvironmentGuard
from tests.support.rollout import (
    FAMILY,
    RENDERER,
    STOP,
    Behaviour,
    OddFamily,
    blocks,
    deaf,
    decode,
    encode,
    forever,
    manifest,
    resources,
    solve,
    spec,
    started,
)

TASK = next(task for task in FAMILY.generate(1, 50) if len(FAMILY.oracle(task) or ()) == 4)


async def play(engine: ScriptedEngine, family: Any = FAMILY, **limits: Any) -> Trajectory:
    task = TASK if family is FAMILY else family.generate(0, 1)[0]
    trajectory = await Episode(spec(task), resources(engine, family, **limits)).play()
    await engine.close()
    assert len(asyncio.all_tasks()) == 1
    return trajectory


async def test_a_solved_episode_word_for_word() -> None:
    trajectory = await play(await started())
    start, files = TASK.payload["start"], TASK.payload["files"]
    second, third = files[start], files[files[start]]
    answer = files[third]
    assert decode(trajectory.token_ids) == (
        f"?{start}\n>{start}\n:{second}\n>{second}\n:{third}\n>{third}\n={answer}\n={answer}\n"
    )
    assert [index for index, own in enumerate(trajectory.loss_mask) if own] == [
        *range(4, 8), *range(12, 16), *range(20, 24), *range(28, 32),
    ]  # fmt: skip
    assert all((logprob < 0) == own for logprob, own in zip(trajectory.logprobs, trajectory.loss_mask, strict=True))
    assert trajectory.segments == (Segment(4, 0),)
    assert (trajectory.status, trajectory.reward, trajectory.success, trajectory.turns) == ("ok", 1.0, True, 4)
    assert trajectory.valid
    assert trajectory.task_id == TASK.id
    assert trajectory.environment == "pointer_chase/v1"


async def test_the_seconds_and_the_intervals_are_measured() -> None:
    async def slow_reset() -> None:
        await asyncio.sleep(0.03)

    async def slow_step(action: str) -> StepResult:
        await asyncio.sleep(0.02)
        if action == "=42":
            return StepResult(reward=0.5, terminated=True)
        return StepResult((Message("tool", "=42\n"),))

    trajectory = await play(await started(step_s=0.002), OddFamily(Behaviour(reset=slow_reset, step=slow_step)))
    seconds = trajectory.seconds
    assert seconds.resetting >= 0.03
    assert seconds.in_tools >= 0.02
    assert seconds.in_reward >= 0.02
    assert seconds.decoding >= 2 * 3 * 0.002
    assert seconds.total <= trajectory.finished_unix - trajectory.started_unix
    assert len(trajectory.request_seconds) == 4
    flat = [moment for interval in trajectory.request_seconds for moment in interval]
    assert flat == sorted(flat)
    assert trajectory.started_unix < flat[0]
    assert flat[-1] <= trajectory.finished_unix


async def test_a_reward_comes_with_its_parts() -> None:
    async def step(action: str) -> StepResult:
        return StepResult(reward=0.75, terminated=True, reward_parts={"answer": 1.0, "length": -0.25})

    trajectory = await play(await started(), OddFamily(Behaviour(step=step)))
    assert (trajectory.reward, trajectory.reward_parts) == (0.75, {"answer": 1.0, "length": -0.25})


async def test_parts_that_do_not_sum_to_the_reward_are_an_environment_failure() -> None:
    async def step(action: str) -> StepResult:
        return StepResult(reward=1.0, terminated=True, reward_parts={"answer": 0.5})

    trajectory = await play(await started(), OddFamily(Behaviour(step=step)))
    assert (trajectory.status, trajectory.reward, trajectory.reward_parts) == ("env_error", None, {})
    assert "the parts of the reward sum to 0.5, and the reward is 1" in trajectory.reason


async def test_contexts_are_what_was_sampled_token_for_token() -> None:
    """verl#3960, #6719, rllm#272, ART#726, NeMo-Gym#1416: text re-tokenised between turns.

    The policy here also samples `<eos>`, which no text of the environment shows: each context must still begin
    with the whole context before it and the very ids that were sampled.
    """
    contexts: list[tuple[int, ...]] = []
    replies: list[list[int]] = []

    def odd(request: GenerationRequest) -> list[int]:
        contexts.append(request.prompt_ids)
        replies.append([*encode(">z"), 0, 1] if len(contexts) % 2 else encode(">zz>zz>zz"))
        return replies[-1]

    trajectory = await play(await started(odd), max_turns=6, max_tokens_per_turn=8)
    assert trajectory.turns == 6
    for before, sampled, after in zip(contexts, replies, contexts[1:], strict=False):
        turn = sampled[:8]
        cut = turn[-1] not in RENDERER.stop_ids
        observation = ([STOP] if cut else []) + encode("?\n")
        assert after == (*before, *turn, *observation)
    assert trajectory.token_ids[: len(contexts[-1])] == contexts[-1]


async def test_requests_are_seeded_by_their_place_and_sampled_as_told() -> None:
    requests: list[GenerationRequest] = []

    def note(request: GenerationRequest) -> list[int]:
        requests.append(request)
        return solve(request)

    engine = await started(note)
    shared = resources(engine, temperature=0.7, seed=3)
    for member in (0, 1, 0):
        await Episode(spec(TASK, group=9, member=member, priority=7), shared).play()
    await engine.close()
    first, second, again = requests[:4], requests[4:8], requests[8:]
    assert [r.seed for r in first] == [r.seed for r in again]
    assert len({r.seed for r in [*first, *second]}) == 8
    assert {r.temperature for r in requests} == {0.7}
    assert {r.priority for r in requests} == {7}
    assert {r.stop_ids for r in requests} == {RENDERER.stop_ids}


async def test_running_out_of_turns_is_judged_by_the_environment() -> None:
    trajectory = await play(await started(lambda _: encode(">zz\n")), max_turns=3)
    assert (trajectory.status, trajectory.reward, trajectory.turns) == ("truncated", 0.0, 3)
    assert trajectory.valid


async def test_an_environment_without_a_limit_is_cut_and_gets_no_made_up_reward() -> None:
    """trl#6427, #6430: no answer scored 0."""

    async def goes_on(action: str) -> StepResult:
        return StepResult((Message("tool", "?\n"),))

    trajectory = await play(await started(), OddFamily(Behaviour(step=goes_on)), max_turns=3)
    assert (trajectory.status, trajectory.reward, trajectory.turns) == ("truncated", None, 3)
    assert not trajectory.valid


async def test_a_full_context_truncates_without_a_reward() -> None:
    trajectory = await play(await started(lambda _: encode(">zz\n")), context_tokens=30)
    assert (trajectory.status, trajectory.reward) == ("truncated", None)
    assert "context of 30 tokens" in trajectory.reason
    assert 24 < len(trajectory.token_ids) <= 30


async def test_a_turn_that_the_engine_hands_back_unfinished_is_sampled_on() -> None:
    parts = {4: encode(f">{TASK.payload['start']}"), 7: encode("\n")}
    first_requests: list[GenerationRequest] = []

    def in_parts(request: GenerationRequest) -> list[int]:
        if len(request.prompt_ids) in parts:
            first_requests.append(request)
            return parts[len(request.prompt_ids)]
        return solve(request)

    trajectory = await play(await started(in_parts))
    assert (trajectory.status, trajectory.reward, trajectory.turns) == ("ok", 1.0, 4)
    assert [request.max_tokens for request in first_requests] == [8, 5]
    assert len({request.seed for request in first_requests}) == 2


async def test_an_engine_that_never_finishes_a_turn_is_dead() -> None:
    trajectory = await play(await started(lambda _: []))
    assert trajectory.status == "engine_error"
    assert "unfinished 8 times" in trajectory.reason


async def raises(*_: object) -> Any:
    raise ValueError("broken tool")


async def not_a_number(_: str) -> StepResult:
    return StepResult(reward=float("nan"), terminated=True)


async def nothing(_: str) -> Any:
    return None


async def unknown_characters(_: str) -> StepResult:
    return StepResult((Message("tool", "É\n"),))


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        (Behaviour(reset=raises), "env_error", "reset raised ValueError: broken tool"),
        (Behaviour(step=raises), "env_error", "step raised ValueError: broken tool"),
        (Behaviour(step=not_a_number), "env_error", "reward nan"),
        (Behaviour(step=nothing), "env_error", "step returned NoneType"),
        (Behaviour(step=unknown_characters), "env_error", "characters the model does not know"),
        (Behaviour(reset=forever), "timeout", "reset took longer than 0.1 s"),
        (Behaviour(step=forever), "timeout", "step took longer than 0.1 s"),
        (Behaviour(step=deaf), "timeout", "step took longer than 0.1 s"),
        (Behaviour(step=blocks), "timeout", "blocked the event loop"),
    ],
)
async def test_an_environment_that_fails_gives_no_reward(behaviour: Behaviour, status: str, reason: str) -> None:
    """NeMo-RL#2207, #431, NeMo-Gym#2015: infrastructure errors scored 0."""
    family, guard = OddFamily(behaviour), EnvironmentGuard(grace_s=0.05)
    with guard.installed():
        trajectory = await play(await started(), family, guard=guard, step_deadline_s=0.1)
    assert (trajectory.status, trajectory.reward, trajectory.success) == (status, None, None)
    assert reason in trajectory.reason
    assert not trajectory.valid
    assert (family.opened, family.closed) == (1, 1)


async def test_a_reward_given_before_a_failure_does_not_count() -> None:
    async def praises_then_fails(action: str) -> StepResult:
        if action.startswith("="):
            raise ValueError("late")
        return StepResult((Message("tool", "=42\n"),), reward=1.0)

    trajectory = await play(await started(), OddFamily(Behaviour(step=praises_then_fails)))
    assert (trajectory.status, trajectory.reward) == ("env_error", None)


async def test_the_episode_deadline_is_told_from_that_of_a_step() -> None:
    """verifiers#1751: which deadline it was."""
    trajectory = await play(
        await started(), OddFamily(Behaviour(step=forever)), step_deadline_s=9.0, episode_deadline_s=0.05
    )
    assert trajectory.status == "timeout"
    assert "environment.episode_deadline_s" in trajectory.reason


async def test_an_environment_that_ignores_the_episode_deadline_does_not_go_on() -> None:
    async def ignores(action: str) -> StepResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return StepResult((Message("tool", ":ab\n"),))
        raise AssertionError

    trajectory = await play(await started(), OddFamily(Behaviour(step=ignores)), episode_deadline_s=0.05)
    assert (trajectory.status, trajectory.turns) == ("timeout", 1)


async def test_an_engine_that_hangs_fails_the_request() -> None:
    """SkyRL#1691: the engine dies and the run hangs."""
    engine = await started()
    engine.hang()
    episode = Episode(spec(TASK), resources(engine, request_deadline_s=0.05))
    trajectory = await episode.play()
    assert trajectory.status == "engine_error"
    assert isinstance(episode.failure, EngineDied)
    assert engine.status().running + engine.status().waiting == 0
    await engine.close()


async def test_an_engine_that_dies_fails_the_episode_and_says_so() -> None:
    engine = await started(step_s=0.001)
    episode = Episode(spec(TASK), resources(engine))
    playing = asyncio.create_task(episode.play())
    await asyncio.sleep(0.005)
    engine.die("out of memory")
    trajectory = await playing
    assert (trajectory.status, trajectory.reward) == ("engine_error", None)
    assert "out of memory" in str(episode.failure)
    await engine.close()


async def test_segments_follow_an_update_in_flight() -> None:
    engine = await started(step_s=0.001)
    playing = asyncio.create_task(Episode(spec(TASK), resources(engine)).play())
    while engine.status().generated_tokens < 6:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await engine.update(manifest(1))
    trajectory = await playing
    await engine.close()
    assert [segment.version for segment in trajectory.segments] == [0, 1]
    assert trajectory.segments[0].start == 4
    boundary = trajectory.segments[1].start
    assert 12 <= boundary < len(trajectory.token_ids)
    assert trajectory.loss_mask[boundary]


@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_cancellation_at_any_point_leaves_nothing_behind(steps: int) -> None:
    """trl#6238: environments leak on error."""

    async def reset() -> None:
        await asyncio.sleep(0)

    async def step(action: str) -> StepResult:
        await asyncio.sleep(0)
        return StepResult((Message("tool", ":ab\n"),))

    family = OddFamily(Behaviour(reset=reset, step=step))
    engine = await started()
    playing = asyncio.create_task(Episode(spec(family.generate(0, 1)[0]), resources(engine, family)).play())
    for _ in range(steps):
        await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert family.opened == family.closed
    assert engine.status().running + engine.status().waiting == 0
    await engine.close()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("turns", [0, 2])
async def test_cancelled_episodes_are_typed_and_keep_what_was_sampled(turns: int) -> None:
    engine = await started(lambda _: encode(">zz\n"), step_s=0.001)
    episode = Episode(spec(TASK), resources(engine))
    playing = asyncio.create_task(episode.play())
    if turns:
        while engine.status().generated_tokens < turns * 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
    episode.cancel("9 versions old, the limit is 8")
    trajectory = await playing
    await engine.close()
    assert (trajectory.status, trajectory.reward) == ("cancelled", None)
    assert trajectory.reason == "9 versions old, the limit is 8"
    assert (trajectory.sampled_tokens >= 4) == (turns > 0)
    assert not trajectory.valid


async def test_an_environment_that_does_not_close_is_left_behind_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trajectory = await play(await started(), OddFamily(Behaviour(close=raises)))
    assert trajectory.reward == 1.0
    assert "close raised ValueError" in caplog.text


async def test_many_episodes_at_once_do_not_wait_for_a_slow_one() -> None:
    slow = OddFamily(Behaviour(step=forever))
    engine = await started()
    before = time.monotonic()
    tasks = FAMILY.generate(5, 100)
    stuck = asyncio.create_task(Episode(spec(TASK), resources(engine, slow)).play())
    shared = resources(engine)
    done = await asyncio.gather(*(Episode(spec(task, group=g), shared).play() for g, task in enumerate(tasks)))
    assert time.monotonic() - before < 5.0
    assert all(trajectory.reward == 1.0 for trajectory in done)
    stuck.cancel()
    await asyncio.wait([stuck])
    await engine.close()
