"""What an environment raises or returns that it should not: its member has failed, and everything else goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.scripted import ScriptedEngine
from driftline.environment import Message, Placement, StepResult, Task
from driftline.errors import DeadlineExceeded, EngineDied, EngineError
from driftline.records import Group, Segment, Trajectory
from driftline.rollout.episode import Episode
from driftline.rollout.pool import EnvironmentPool
from driftline.store.memory import MemoryStore
from driftline.store.trajectories import decode_groups, encode_groups
from tests.support.clock import Clock
from tests.support.rollout import FAMILY, Behaviour, OddEnvironment, OddFamily, resources, solve, spec, started
from tests.support.toy_run import Cell, ToyTrainer, create_run, run_all, toy_parameters

Step = Callable[[str], Awaitable[StepResult]]


Result: Any = StepResult


class Panic(BaseException):
    """As an extension in Rust raises it: no `Exception`."""


class Opening(OddFamily):
    """A family whose episodes begin with whatever it is given."""

    prompt: Any = None

    def make(self, *, max_turns: int = 20) -> OddEnvironment:
        made: Any = super().make(max_turns=max_turns)

        async def reset(task: Task, seed: int) -> Any:
            return self.prompt

        made.reset = reset
        return made


async def play(family: Any, placement: Placement = "loop") -> Trajectory:
    """An episode, as it comes back from the store."""
    engine = await started()
    shared = resources(engine, family)
    async with EnvironmentPool(family, shared.guard, placement=placement) as pool, asyncio.timeout(10.0):
        played = await Episode(spec(family.generate(0, 1)[0]), replace(shared, pool=pool)).play()
    await engine.close()
    body = encode_groups("r", [Group(0, played.task_id, played.task_set, (played,))])
    [group] = decode_groups(body, run="r", key="k")
    assert family.opened == family.closed
    return group.trajectories[0]


def returning(made: Callable[[], Any]) -> Step:
    async def step(action: str) -> StepResult:
        return made()

    return step


def raising(error: BaseException) -> Step:
    async def step(action: str) -> StepResult:
        raise error

    return step


async def waits_for_what_is_cancelled(action: str) -> StepResult:
    waiting = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(waiting.cancel)
    await waiting
    raise AssertionError


async def gives_up_after_a_while(action: str) -> StepResult:
    await asyncio.sleep(0.001)
    raise asyncio.CancelledError


@pytest.mark.parametrize("placement", ["loop", "thread"])
@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (raising(asyncio.CancelledError()), "CancelledError, and nobody had cancelled it"),
        (gives_up_after_a_while, "CancelledError, and nobody had cancelled it"),
        (waits_for_what_is_cancelled, "CancelledError, and nobody had cancelled it"),
        (raising(Panic("index out of bounds")), r"Panic('index out of bounds')"),
        (raising(ValueError("no file \udcff")), "step raised ValueError: no file ?"),
    ],
)
async def test_whatever_it_raises_is_its_own_failure(step: Step, reason: str, placement: Placement) -> None:
    trajectory = await play(OddFamily(Behaviour(step=step)), placement)
    assert (trajectory.status, trajectory.reward) == ("env_error", None)
    assert reason in trajectory.reason


@pytest.mark.parametrize("placement", ["loop", "thread"])
async def test_an_environment_with_deadlines_of_its_own_plays_on(placement: Placement) -> None:
    async def step(action: str) -> StepResult:
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await asyncio.sleep(60)
        return StepResult(reward=1.0, terminated=True)

    trajectory = await play(OddFamily(Behaviour(step=step)), placement)
    assert (trajectory.status, trajectory.reward) == ("ok", 1.0)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (None, "reset returned NoneType among its messages: give Message(role, text) each"),
        ("?ab\n", "reset returned str among"),
        ([{"role": "user", "content": "?ab\n"}], "reset returned dict among"),
        ((Message("user", 3),), "reset returned a Message of 3 among"),  # pyright: ignore[reportArgumentType]
        ((Message("user", "?", ("a",)),), "token ids that are none"),  # pyright: ignore[reportArgumentType]
        ((Message("user", "?", 5),), "token ids that are none"),  # pyright: ignore[reportArgumentType]
        ((), "a prompt without a token"),
        ((Message("user", ""),), "a prompt without a token"),
    ],
)
async def test_a_prompt_that_is_none_is_its_own_failure(prompt: Any, reason: str) -> None:
    family = Opening()
    family.prompt = prompt
    trajectory = await play(family)
    assert (trajectory.status, trajectory.turns) == ("env_error", 0)
    assert reason in trajectory.reason


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: Result("well done"), "returned str among its messages"),
        (lambda: Result([{"role": "tool", "content": "x"}]), "returned dict among its messages"),
        (lambda: Result((Message("tool", b"x"),)), "returned a Message of b'x' among"),  # pyright: ignore[reportArgumentType]
        (lambda: Result(reward="1", terminated=True), "the reward '1': it must be finite, and a number"),
        (lambda: Result(reward=10**400, terminated=True), "it must be finite, and a number"),
        (lambda: Result(reward=1.0, terminated=True, success="yes"), "the success 'yes'"),
        (lambda: Result(reward=1.0, terminated=True, reward_parts={3: 1.0}), "a part of its reward 3"),
        (lambda: Result(reward=1.0, terminated=True, reward_parts={"\udcff": 1.0}), "name it in plain text"),
    ],
)
async def test_an_answer_that_is_none_is_its_own_failure(made: Any, reason: str) -> None:
    trajectory = await play(OddFamily(Behaviour(step=returning(made))))
    assert (trajectory.status, trajectory.reward, trajectory.success) == ("env_error", None, None)
    assert reason in trajectory.reason


@pytest.mark.parametrize("one", [1, True, np.float32(1), np.array(1.0)])
@pytest.mark.parametrize("right", [True, np.True_, 1])
async def test_numbers_of_other_libraries_are_numbers(one: Any, right: Any) -> None:
    result = Result(
        reward=one, terminated=np.True_, success=right, reward_parts={"answer": one, "length": np.float32(0)}
    )
    assert {type(result.reward), type(result.reward_parts["length"])} == {float}
    assert {type(result.terminated), type(result.success)} == {bool}
    trajectory = await play(OddFamily(Behaviour(step=returning(lambda: result))))
    assert (trajectory.status, trajectory.reward, trajectory.success) == ("ok", 1.0, True)
    assert trajectory.reward_parts == {"answer": 1.0, "length": 0.0}


TEN_MEGABYTES = (Message("user", "a" * 10_000_000),)


@pytest.mark.parametrize("placement", ["loop", "thread"])
async def test_ten_megabytes_are_no_room_left_and_no_reward(placement: Placement) -> None:
    """As the prompt, and as an observation; from a process they do not come at all (`test_environment_processes`)."""
    opening = Opening()
    opening.prompt = TEN_MEGABYTES
    answering = OddFamily(Behaviour(step=returning(lambda: StepResult(TEN_MEGABYTES))))
    for family, turns in ((opening, 0), (answering, 1)):
        trajectory = await play(family, placement)
        assert (trajectory.status, trajectory.reward, trajectory.turns) == ("truncated", None, turns)
        assert "the context of" in trajectory.reason
        assert len(trajectory.token_ids) < 300


async def test_groups_whose_prompt_is_longer_than_the_context_are_given_up_and_replaced() -> None:
    params = toy_parameters()

    class Long(OddFamily):
        def make(self, *, max_turns: int = 20) -> OddEnvironment:
            made: Any = super().make(max_turns=max_turns)

            async def reset(task: Task, seed: int) -> tuple[Message, ...]:
                return (Message("user", "a" * (5000 if task.payload["number"] % 3 == 0 else 3)),)

            made.reset = reset
            return made

    family = Long()
    store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(store, params, steps=4)
    await run_all(trainer, Cell(store, params, family=family, script=None))
    given_up = [group for group in store.new_groups() if group.number in trainer.given_up]
    assert given_up
    assert {(m.status, m.reward, m.turns) for group in given_up for m in group.trajectories} == {
        ("truncated", None, 0)
    }
    assert {m.reward for batch in trainer.batches for group in batch for m in group.trajectories} == {1.0}
    assert family.opened == family.closed


async def test_a_group_is_complete_though_its_environments_cancel_themselves() -> None:
    params = toy_parameters(rollout={"groups_per_step": 2, "surplus_members": 1})
    family, calls = OddFamily(), iter(range(10**9))

    async def step(action: str) -> StepResult:
        if next(calls) % 4 == 0:
            raise asyncio.CancelledError
        return StepResult(reward=1.0, terminated=True, success=True)

    family.behaviour = Behaviour(step=step)
    store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(store, params, steps=3)
    (counters,) = await run_all(trainer, Cell(store, params, family=family, script=None))
    assert len(trainer.batches) == 3
    assert counters.failed > 0
    ended = [member.status for batch in trainer.batches for group in batch for member in group.trajectories]
    assert {*ended} == {"ok", "env_error"}


async def test_seconds_are_not_negative_though_the_clock_is_set_back() -> None:
    clock, engine = Clock(), await started()
    family = OddFamily()

    async def reset() -> None:
        clock.now -= 3600.0

    family.behaviour = Behaviour(reset=reset)
    shared = replace(resources(engine, family), clock=clock)
    trajectory = await Episode(spec(family.generate(0, 1)[0]), shared).play()
    await engine.close()
    assert trajectory.seconds.resetting == 0.0


class Odd(ScriptedEngine):
    """Answers as it is told."""

    answer: Callable[[], Generation]

    async def generate(self, request: GenerationRequest) -> Generation:
        return self.answer()


async def failed(answer: Callable[[], Generation]) -> tuple[Trajectory, Any]:
    engine = Odd(script=solve)
    engine.answer = answer
    episode = Episode(spec(FAMILY.generate(1, 1)[0]), resources(engine))
    return await episode.play(), episode.failure


async def test_an_engine_that_ends_a_turn_without_a_token_fails_and_says_so() -> None:
    trajectory, failure = await failed(lambda: Generation((), (), (), "stop", 0.0, 0.0, 0.0))
    assert (trajectory.status, trajectory.reward) == ("engine_error", None)
    assert isinstance(failure, EngineError)
    assert "sampled no token" in trajectory.reason


async def test_an_engine_that_returns_less_than_it_says_fails() -> None:
    trajectory, failure = await failed(lambda: Generation((4, 5), (-1.0,), (Segment(0, 0),), "stop", 0.0, 0.0, 0.0))
    assert trajectory.status == "engine_error"
    assert "2 tokens with 1 log-probabilities" in str(failure)


def turn(tokens: Sequence[int], ends: Any) -> Generation:
    return Generation(tuple(tokens), (-1.0,) * len(tokens), (Segment(0, 0),), ends, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("tokens", "ends", "reason"),
    [
        ((4, 5, 6), "length", "ended a turn by length with 3 tokens, and 8 were asked for"),
        ((4,) * 9, "length", "ended a turn by length with 9 tokens, and 8 were asked for"),
        ((4,) * 9, "abort", "ended a turn by abort with 9 tokens, and 8 were asked for"),
        ((4, 5, 6), "stop", "ended a turn by stop at token 6, which ends none"),
    ],
)
async def test_an_engine_that_cuts_a_turn_where_nobody_asked_fails(
    tokens: Sequence[int], ends: str, reason: str
) -> None:
    trajectory, failure = await failed(lambda: turn(tokens, ends))
    assert (trajectory.status, trajectory.reward) == ("engine_error", None)
    assert isinstance(failure, EngineError)
    assert reason in trajectory.reason
    assert trajectory.sampled_tokens == len(tokens), "the account of tokens has them"


async def test_a_wait_for_an_engine_that_ran_out_is_the_engines_failure_in_its_own_words() -> None:
    def wait() -> Generation:
        raise DeadlineExceeded("no engine came back within 60 s: see why they died")

    trajectory, failure = await failed(wait)
    assert (trajectory.status, trajectory.reason) == ("engine_error", str(failure))
    assert isinstance(failure, EngineDied)
    assert str(failure).startswith("no engine came back within 60 s")
