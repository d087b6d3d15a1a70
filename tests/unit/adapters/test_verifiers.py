"""The verifiers adapter on a stand-in for the package; the real one is in tests/integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from driftline.adapters.verifiers import Verifiers
from driftline.environment import StepResult
from driftline.errors import ConfigurationError, EnvironmentFailed
from tests.support import fake_verifiers


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in fake_verifiers.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


def sums(**config: Any) -> Verifiers:
    return Verifiers("sums", config=config, score_deadline_s=0.1)


async def answered(family: Verifiers, text: str) -> StepResult:
    """The score of an answer; {answer} in it is the right one."""
    task = family.generate(seed=0, count=1)[0]
    environment = family.make()
    await environment.reset(task, seed=0)
    return await environment.step(text.format(answer=task.payload["data"]["answer"]))


async def test_the_prompt_is_the_tasks() -> None:
    family = sums(instruction="Be brief.")
    task = family.generate(seed=0, count=1)[0]
    prompt = await family.make().reset(task, seed=0)
    assert [(one.role, one.content) for one in prompt] == [
        ("system", "Be brief."), ("user", task.payload["data"]["prompt"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "parts", "success"),
    [
        ("{answer}", {"right": 1.0, "polite": 0.0}, True),
        ("please {answer}", {"right": 1.0, "polite": 0.5}, True),
        ("please", {"right": 0.0, "polite": 0.5}, False),
        ("", {"right": 0.0, "polite": 0.0}, False),
    ],
)
async def test_the_reward_is_the_weighted_sum(text: str, parts: dict[str, float], success: bool) -> None:
    result = await answered(sums(), text)
    assert (result.reward, result.reward_parts) == (sum(parts.values()), parts)
    assert (result.success, result.terminated) == (success, True)


async def test_the_trace_is_a_finished_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(fake_verifiers.Sum, "hooks", lambda self, kind: [self.right] if kind == "reward" else [])

    async def right(self: Any, trace: Any) -> float:
        seen.append(trace)
        return 1.0

    monkeypatch.setattr(fake_verifiers.Sum, "right", right)
    await answered(sums(instruction="Be brief."), "2")
    (trace,) = seen
    assert [(node.message.role, node.parent, node.sampled) for node in trace.nodes] == [
        ("system", None, False), ("user", 0, False), ("assistant", 1, True),
    ]  # fmt: skip
    assert (trace.is_completed, trace.ok, trace.stop_condition) == (True, True, "agent_completed")


async def test_without_rewards_nothing_is_known() -> None:
    assert await answered(sums(kind="Unscored"), "2") == StepResult(terminated=True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "Raising"}, "a reward raised ValueError: invalid literal"),
        ({"kind": "Slow"}, r"took longer than 0.1 s: raise score_deadline_s"),
        ({"kind": "Slow", "limit_s": 0.05}, r"took longer than 0.05 s"),
        ({"kind": "Missing"}, "there is no reward right"),
    ],
)
async def test_a_score_that_fails_is_no_score(config: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        await answered(sums(**config), "two")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "Contained"}, "Contained needs a container"),
        ({"kind": "Prepared"}, r"Prepared prepares or reads a runtime \(its setup\)"),
        ({"kind": "WithTools"}, "WithTools has tools"),
        ({"kind": "Running"}, "the reward run of Running runs a program"),
        ({"kind": "Measuring"}, "the metric passed of Measuring runs a program"),
        ({"judges": ["rubric"]}, "Sum has a judge"),
        ({"shared_tools": True}, "it has tools"),
        ({"skills": ["git"]}, "Sum has skills or artifacts"),
        ({"prompt": None}, "it has no prompt: a simulated user opens the conversation"),
    ],
)
def test_what_has_no_place_here_is_refused_before_it_is_played(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be played here: {message}"):
        sums(**config).generate(0, 1)


def test_an_environment_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["verifiers.v1"], "environment_class", lambda name: object)
    with pytest.raises(ConfigurationError, match="an environment of its own"):
        sums().generate(0, 1)


def test_tasks_follow_from_the_seed_and_from_what_the_task_set_is_made_of() -> None:
    family = sums()
    assert family.generate(3, 8) == sums().generate(3, 8)
    assert len({task.id for task in family.generate(3, 20)}) == 20
    assert {task.id for task in family.generate(3, 8)} != {task.id for task in family.generate(4, 8)}
    other = sums(instruction="Be brief.").generate(3, 20)
    assert not {task.id for task in family.generate(3, 20)} & {task.id for task in other}
    with pytest.raises(ConfigurationError, match="has 20 tasks, not 21: ask for fewer"):
        family.generate(3, 21)


def test_a_tasks_place_in_the_task_set_is_no_part_of_its_state() -> None:
    family = sums()
    assert sorted(task.data.idx for task in family.loaded.values()) == list(range(20))
    assert not any("idx" in task.payload["data"] for task in family.generate(0, 20))


def test_the_path_of_a_system_prompt_is_no_part_of_a_tasks_state(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "other"]
    for path in paths:
        path.write_text("Be brief.")
    one, other = (sums(system_prompt=str(path)) for path in paths)
    assert one.generate(0, 3) == other.generate(0, 3)
    assert one.generate(0, 1)[0].payload["data"]["system_prompt"] == "Be brief."


def test_a_task_set_without_end_is_cut() -> None:
    endless = Verifiers("sums", config={"last": 10**9}, most_tasks=5)
    assert len(endless.loaded) == 5


async def test_a_task_of_another_configuration_is_refused() -> None:
    task = sums(last=30, instruction="Be brief.").generate(0, 1)[0]
    with pytest.raises(EnvironmentFailed, match=r"has no task .* here: it was made by another version"):
        await sums().make().reset(task, seed=0)


async def test_the_one_turn_ends_the_episode_and_a_snapshot_says_so() -> None:
    family = sums()
    task = family.generate(0, 1)[0]
    environment = family.make()
    await environment.reset(task, seed=0)
    assert await environment.snapshot() is True
    await environment.step("2")
    assert await environment.snapshot() is False
    with pytest.raises(EnvironmentFailed, match="has ended"):
        await environment.step("2")
    await environment.restore(task, True)
    assert (await environment.step("2")).terminated


def test_nothing_is_fetched_from_the_hub() -> None:
    with pytest.raises(ConfigurationError, match="would fetch 'primeintellect/gsm8k' from its Hub: install it"):
        Verifiers("primeintellect/gsm8k").generate(0, 1)


def test_a_task_set_that_is_not_there_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"the task set 'gsm8k' cannot be loaded .*is it installed"):
        Verifiers("gsm8k").generate(0, 1)
