from __future__ import annotations

import pytest

from driftline.environment import Message, StepResult, Task, registry, resolve
from driftline.errors import ConfigurationError, EnvironmentFailed


def test_a_result_unpacks_as_gymnasium_s_does() -> None:
    result = StepResult(
        (Message("tool", "42"),), 1.5, True, success=True, info={"steps": 3}, reward_parts={"a": 1.0, "b": 0.5}
    )
    observation, reward, terminated, truncated, info = result
    assert observation == (Message("tool", "42"),)
    assert (reward, terminated, truncated) == (1.5, True, False)
    assert info == {"steps": 3, "success": True, "reward_parts": {"a": 1.0, "b": 0.5}}
    assert tuple(StepResult()) == ((), None, False, False, {})


@pytest.mark.parametrize(
    ("reward", "parts", "message"),
    [
        (float("nan"), {}, "must be finite"),
        (1.0, {"a": 0.4, "b": 0.5}, r"sum to 0\.9, and the reward is 1: return their sum \(a, b\)"),
        (1.0, {"a": 0.5, "b": 0.50001}, r"sum to 1\.00001, and the reward is 1"),
        (1000.0, {"a": 1000.01}, r"sum to 1000\.01, and the reward is 1000"),
        (None, {"a": 0.0}, "parts of a reward, and no reward"),
        (1.0, {"a": float("nan")}, "must be finite"),
    ],
)
def test_rewards_that_cannot_be_are_refused(reward: float | None, parts: dict[str, float], message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        StepResult(reward=reward, reward_parts=parts)


def test_parts_may_miss_the_reward_by_rounding() -> None:
    assert StepResult(reward=0.3, reward_parts={"a": 0.1, "b": 0.2}).reward == 0.3


def test_equal_states_are_equal_tasks() -> None:
    one, other = (Task.create("a/v1", payload) for payload in ({"x": 1, "y": [2]}, {"y": [2], "x": 1}))
    assert one.id == other.id
    assert one.id != Task.create("a/v2", one.payload).id


def test_an_entry_point_is_found_and_only_loaded_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def __init__(self, name: str, value: str) -> None:
            self.name, self.value = name, value

        def load(self) -> object:
            assert self.name != "broken/v1", "it was not asked for"
            return resolve("tests.support.faulty_environments:Counting")

    points = [Point("counting/v1", "package:Counting"), Point("broken/v1", "package:Broken")]
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: points)
    assert resolve("counting/v1").id == "counting/v1"
    assert registry.registered()["counting/v1"].found_in == "package:Counting (entry point)"
    with pytest.raises(ConfigurationError, match="did you mean 'counting/v1'"):
        resolve("counting/v2")
    points.append(Point("hilo", "hilo:HiLo"))
    told = r"'hilo' is registered without a version \(hilo:HiLo \(entry point\)\): .* `\"hilo/v1\" = "
    with pytest.raises(ConfigurationError, match=told):
        resolve("hilo/v1")


def test_of_many_known_ids_the_families_are_named() -> None:
    with pytest.raises(ConfigurationError, match="no environment 'qqq'") as found:
        resolve("qqq")
    assert "reasoning_gym/... (1" in str(found.value)
    assert "pointer_chase/... (1)" in str(found.value)
    assert "`driftline environments list` names each" in str(found.value)
    assert len(str(found.value)) < 300


def test_a_family_of_the_checkout_goes_before_an_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "pointer_chase/v1", "package:Other"

        def load(self) -> object:
            raise AssertionError("the checkout has it")

    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [Point()])
    assert registry.registered()["pointer_chase/v1"].found_in == "environments"
    assert type(resolve("pointer_chase/v1")).__module__.startswith("environments.")
