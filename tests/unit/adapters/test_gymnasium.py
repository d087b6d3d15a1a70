"""The Gymnasium adapter on a stand-in for the package; the real one is in tests/integration."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from driftline.adapters.gymnasium import Gymnasium
from driftline.environment import StepResult, Task
from driftline.environment.checks import check
from driftline.errors import ConfigurationError, EnvironmentFailed
from tests.support import fake_gymnasium

CORRIDOR = Gymnasium("Corridor-v0", actions=("back", "on"))


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", fake_gymnasium)


def at(place: int, family: Gymnasium = CORRIDOR) -> Task:
    """A task that begins there."""
    return next(one for one in family.generate(0, 64) if Random(one.payload["seed"]).randrange(3) == place)


async def played(family: Gymnasium, task: Task, *actions: str, max_turns: int = 20) -> list[StepResult]:
    environment = family.make(max_turns=max_turns)
    try:
        await environment.reset(task, seed=0)
        return [await environment.step(action) for action in actions]
    finally:
        await environment.close()


async def test_the_prompt_has_the_drawing_and_the_form_of_an_action() -> None:
    environment = CORRIDOR.make()
    (message,) = await environment.reset(at(1), seed=5)
    assert message.content == (
        "You act in Corridor-v0, step by step.\n\n.<red>.</red>...\n\n"
        "Answer with one of: back, on, and nothing else, or put it between <answer> and </answer>."
    )
    await environment.close()


async def test_the_reward_is_the_return_and_comes_with_the_end() -> None:
    said = await played(CORRIDOR, at(2), "back", "on", "on", "on")
    assert [one.reward for one in said] == [None, None, None, 1.0 - 3 * 0.125]
    assert (said[-1].terminated, said[-1].truncated, said[-1].success) == (True, False, True)
    assert said[0].messages[0].content == ".<red>.</red>..."


async def test_both_limits_of_turns_truncate_with_the_return_until_then() -> None:
    ours = (await played(CORRIDOR, at(0), "back", "back", max_turns=2))[-1]
    assert (ours.reward, ours.truncated, ours.terminated, ours.success) == (-0.25, True, False, False)
    limited = Gymnasium("Corridor-v0", kwargs={"limit": 2})
    last = (await played(limited, at(0, limited), "0", "0"))[-1]
    assert (last.reward, last.truncated, last.terminated) == (-0.25, True, False)


async def test_what_is_no_action_costs_the_turn_and_moves_nothing() -> None:
    said = await played(CORRIDOR, at(1), "jump", "on", max_turns=2)
    assert said[0].messages[0].content == "That is no action: there are back, on"
    assert said[1].messages[0].content == "..<red>.</red>.."
    assert (said[1].reward, said[1].truncated) == (-0.125, True)


async def test_success_is_what_the_environment_says_before_any_threshold() -> None:
    says_no = Gymnasium("Corridor-v0", kwargs={"fault": "says no"})
    assert (await played(says_no, at(2, says_no), "1", "1"))[-1].success is False
    strict = Gymnasium("Corridor-v0", solved_at=2.0)
    assert (await played(strict, at(2, strict), "1", "1"))[-1].success is False


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reset", "Corridor-v0: reset raised OSError: no such file"),
        ("step", "Corridor-v0: step raised RuntimeError: broken"),
        ("reward", "the reward nan: it must be a finite number"),
    ],
)
async def test_what_the_environment_raises_is_a_failure(fault: str, message: str) -> None:
    family = Gymnasium("Corridor-v0", kwargs={"fault": fault})
    with pytest.raises(EnvironmentFailed, match=message):
        await played(family, family.generate(0, 1)[0], "1")


async def test_tasks_of_other_settings_or_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Gymnasium("Corridor-v0", kwargs={"limit": 9}, actions=("back", "on"))
    with pytest.raises(EnvironmentFailed, match="was made by another gymnasium/Corridor-v0/v1"):
        await played(CORRIDOR, other.generate(0, 1)[0])
    task = CORRIDOR.generate(0, 1)[0]
    monkeypatch.setattr("driftline.adapters.gymnasium.versions_of", lambda *_: {"gymnasium": "9.9"})
    with pytest.raises(EnvironmentFailed, match="with other versions of its packages"):
        await played(CORRIDOR, task)
    assert CORRIDOR.generate(0, 1)[0].id != task.id


async def test_options_reach_reset() -> None:
    family = Gymnasium("Corridor-v0", options={"place": 3})
    assert (await played(family, family.generate(0, 1)[0], "1"))[-1].terminated


async def test_what_was_made_is_closed_once() -> None:
    before = fake_gymnasium.Corridor.closed
    environment = Gymnasium("Corridor-v0", show=str).make()
    await environment.reset(Gymnasium("Corridor-v0", show=str).generate(0, 1)[0], seed=0)
    await environment.close()
    await environment.close()
    assert fake_gymnasium.Corridor.closed == before + 1


def test_an_unknown_environment_is_refused_with_gymnasiums_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"has no environment 'Coridor-v0'.*Did you mean: `Corridor`"):
        Gymnasium("Coridor-v0").generate(0, 1)


def test_settings_are_json() -> None:
    with pytest.raises(ConfigurationError, match="JSON values alone"):
        Gymnasium("Corridor-v0", kwargs={"of": {1, 2}})


async def test_a_snapshot_leads_to_the_same_state() -> None:
    task = at(0)
    first = CORRIDOR.make()
    await first.reset(task, seed=0)
    await first.step("on")
    await first.step("no action")
    snapshot: Any = await first.snapshot()
    second = CORRIDOR.make()
    await second.restore(task, snapshot)
    assert snapshot == ["on", "no action"]
    assert await first.step("on") == await second.step("on")
    with pytest.raises(EnvironmentFailed, match="it is no snapshot of"):
        await second.restore(task, {"said": []})


def test_it_keeps_the_contract() -> None:
    report = check("tests.support.adapted:CORRIDOR")
    assert report.ok, report.failed
    idle = {finding.check for finding in report.findings if finding.verdict == "not applicable"}
    assert idle == {
        "levels of difficulty",
        "oracle solves",
        "another task's answer does not solve",
        "the alphabet covers what is said",
    }
