"""The OpenEnv adapter against a server that speaks its protocol; the real one is in tests/integration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from driftline.adapters.openenv import OpenEnv
from driftline.environment import StepResult, Task, resolve
from driftline.errors import ConfigurationError, EnvironmentFailed
from tests.support.openenv_server import Guessing, serving


@contextlib.asynccontextmanager
async def playing(guessing: Guessing, max_turns: int = 5, **more: Any) -> AsyncIterator[tuple[Any, Task]]:
    """An environment of the server, and a task of it."""
    async with serving(guessing) as url:
        family = OpenEnv(url, name="guessing", **more)
        task = (await asyncio.to_thread(family.generate, 3, 1))[0]
        environment = family.make(max_turns=max_turns)
        try:
            yield environment, task
        finally:
            await environment.close()


def wrong(task: Task) -> str:
    return str((task.payload["seed"] + 1) % 10)


async def test_an_episode_sums_the_rewards_of_its_steps() -> None:
    guessing = Guessing()
    async with playing(guessing, solved_at=0.5, prompt="You are good at this.") as (environment, task):
        prompt = await environment.reset(task, seed=0)
        assert [(one.role, one.content) for one in prompt] == [("user", "You are good at this.\n\nGuess a digit.")]
        missed = await environment.step(wrong(task))
        assert missed == StepResult(messages=missed.messages)
        assert missed.messages[0].content == "Wrong."
        found = await environment.step(str(task.payload["seed"] % 10))
        assert (found.reward, found.terminated, found.truncated, found.success) == (0.75, True, False, True)
        with pytest.raises(EnvironmentFailed, match="has ended"):
            await environment.step("1")
    assert [one["type"] for one in guessing.heard] == ["reset", "step", "step", "close"]
    assert guessing.heard[0]["data"] == {"seed": task.payload["seed"]}
    assert guessing.heard[1]["data"] == {"message": wrong(task)}


async def test_an_episode_is_taken_up_from_its_snapshot() -> None:
    async with playing(Guessing(), max_turns=4, solved_at=0.0) as (first, task):
        await first.reset(task, seed=0)
        for said in (wrong(task), "x" * 11):
            await first.step(said)
        taken = await first.snapshot()
        assert taken == [wrong(task), "x" * 11]
        ends = [await first.step(wrong(task)), await first.step(str(task.payload["seed"] % 10))]
        assert taken == [wrong(task), "x" * 11]
        await first.restore(task, taken)
        assert [await first.step(wrong(task)), await first.step(str(task.payload["seed"] % 10))] == ends
        assert ends[-1].reward == 0.5, "with the rewards of the turns before"
        with pytest.raises(EnvironmentFailed, match="it is no snapshot of"):
            await first.restore(task, {"said": []})


async def test_what_the_server_notes_beside_an_observation_is_not_shown() -> None:
    async with playing(Guessing("more than text")) as (environment, task):
        await environment.reset(task, seed=0)
        assert (await environment.step(wrong(task))).messages[
            0
        ].content == '{"text": "Wrong.", "hint": "?", "left": 3}'


async def test_a_limit_of_turns_truncates_with_the_return_until_then() -> None:
    async with playing(Guessing(), max_turns=2) as (environment, task):
        await environment.reset(task, seed=0)
        await environment.step(wrong(task))
        last = await environment.step(wrong(task))
    assert (last.reward, last.truncated, last.terminated, last.success) == (-0.5, True, False, None)


async def test_without_a_reward_of_the_server_there_is_none() -> None:
    async with playing(Guessing("no reward"), max_turns=1, solved_at=0.0) as (environment, task):
        await environment.reset(task, seed=0)
        last = await environment.step(wrong(task))
    assert (last.reward, last.truncated, last.success) == (None, True, None)


async def test_what_the_schema_refuses_of_a_text_is_the_policys_to_mend() -> None:
    async with playing(Guessing()) as (environment, task):
        await environment.reset(task, seed=0)
        told = await environment.step("x" * 11)
        assert told.messages[0].content == "That is no action: message: at most 10 characters"
        assert (told.reward, told.terminated, told.truncated) == (None, False, False)


async def test_an_action_of_the_wrong_form_is_not_the_policys_fault() -> None:
    async with playing(Guessing(), action_field="text") as (environment, task):
        await environment.reset(task, seed=0)
        message = r"step takes other fields \(message: Field required\): correct `action_field`"
        with pytest.raises(EnvironmentFailed, match=message):
            await environment.step("1")


async def test_a_function_makes_the_action_of_a_text() -> None:
    def act(text: str) -> dict[str, str]:
        if not text.startswith("guess "):
            raise ValueError("say: guess <digit>")
        return {"message": text.removeprefix("guess ")}

    async with playing(Guessing(), act=act) as (environment, task):
        await environment.reset(task, seed=0)
        assert (await environment.step("3")).messages[0].content == "That is no action: say: guess <digit>"
        assert (await environment.step(f"guess {task.payload['seed'] % 10}")).reward == 1.0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "step raised EXECUTION_ERROR: division by zero"),
        ("hangs", r"did not answer step within 0.2 s: raise message_deadline_s"),
        ("hangs up", r"ended the connection at step \(CLOSE"),
        ("no JSON", "answered step with no JSON"),
        ("another kind", "answered step with 'state', not an observation"),
        ("no data", "answered step without data"),
        ("odd reward", "the reward 'much': it must be a finite number"),
    ],
)
async def test_what_the_server_does_wrong_is_a_failure(fault: str, message: str) -> None:
    async with playing(Guessing(fault), message_deadline_s=0.2) as (environment, task):
        await environment.reset(task, seed=0)
        with pytest.raises(EnvironmentFailed, match=message):
            await environment.step("1")


async def test_a_full_server_says_what_to_do() -> None:
    async with playing(Guessing("full")) as (environment, task):
        with pytest.raises(EnvironmentFailed, match=r"is full .*: raise its max_concurrent_envs"):
            await environment.reset(task, seed=0)


async def test_pings_are_answered_while_the_policy_takes_its_time() -> None:
    guessing = Guessing()
    async with playing(guessing) as (environment, task):
        await environment.reset(task, seed=0)
        async with asyncio.timeout(5):
            while not guessing.pongs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_an_answer_that_comes_late_is_none_to_the_next_question() -> None:
    guessing = Guessing("late")
    async with playing(guessing, message_deadline_s=0.2) as (environment, task):
        await environment.reset(task, seed=0)
        with pytest.raises(EnvironmentFailed, match="did not answer step within"):
            await environment.step("1")
        guessing.answer_late.set()
        with pytest.raises(EnvironmentFailed, match="step without a connection that answers: call reset first"):
            await environment.step("2")


async def test_a_cancelled_step_leaves_no_session() -> None:
    guessing = Guessing("hangs")
    async with playing(guessing) as (environment, task):
        await environment.reset(task, seed=0)
        step = asyncio.create_task(environment.step("1"))
        while len(guessing.heard) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await environment.close()
        await environment.close()
        async with asyncio.timeout(5):
            while guessing.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_task_of_another_version_of_the_server_is_refused() -> None:
    guessing = Guessing()
    async with playing(guessing) as (environment, task):
        guessing.version = "1.1"
        with pytest.raises(EnvironmentFailed, match=r"'version': '1.1'.*generate it again, or start that server"):
            await environment.reset(task, seed=0)


async def test_a_tasks_state_names_the_server_and_not_the_machine() -> None:
    tasks = []
    for version in ("1.0", "1.0", "1.1"):
        async with playing(Guessing(version=version)) as (_, task):
            tasks.append(task)
    assert tasks[0] == tasks[1]
    assert tasks[0].id != tasks[2].id
    assert tasks[0].environment == "openenv/guessing/v1"
    assert tasks[0].payload["server"] == {"name": "guessing", "version": "1.0"}


async def test_the_field_must_be_plain_from_the_schema() -> None:
    two = {"properties": {"name": {"type": "string"}, "value": {"type": "string"}, "metadata": {}}}
    with pytest.raises(ConfigurationError, match="an action has name, value, and not one text alone"):
        async with playing(Guessing(action=two)):
            pass


async def test_one_of_an_enumeration_is_text_as_well() -> None:
    action = {
        "properties": {"move": {"$ref": "#/$defs/Move"}, "times": {"type": "integer"}},
        "$defs": {"Move": {"enum": ["up", "down"], "type": "string"}},
    }
    async with playing(Guessing(action=action)) as (_, task):
        assert task.payload["field"] == "move"


def test_where_no_server_is_the_remedy_is_to_start_it() -> None:
    family = resolve("openenv/127.0.0.1:9/v1")
    assert family == OpenEnv("http://127.0.0.1:9")
    assert family.id == "openenv/127.0.0.1-9/v1"
    with pytest.raises(ConfigurationError, match=r"no OpenEnv server answers at http://127.0.0.1:9/metadata"):
        family.generate(0, 1)


@pytest.mark.parametrize("url", ["localhost:8000", "ws://localhost", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no OpenEnv server: give http://host:port"):
        OpenEnv(url)


def test_options_of_reset_are_json() -> None:
    with pytest.raises(ConfigurationError, match="JSON values alone"):
        OpenEnv("http://localhost", reset_options={"of": {1, 2}})
