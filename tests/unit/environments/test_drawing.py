"""Families that have fewer tasks than are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from driftline.environment import Task, at_most, tasks_for
from driftline.errors import ConfigurationError, EnvironmentFailed
from driftline.training.demonstrations import record_demonstrations
from environments.pointer_chase import PointerChase
from tests.support.rollout import RENDERER


class Few(PointerChase):
    """Eleven tasks, drawn as anybody would."""

    def generate(self, seed: int, count: int) -> list[Task]:
        return Random(seed).sample(super().generate(0, 11), count)


class None_(PointerChase):
    def generate(self, seed: int, count: int) -> list[Task]:
        raise ValueError("no tasks today")


def test_a_bare_value_error_names_parameter_family_and_count() -> None:
    told = r"environment\.train_tasks: pointer_chase/v1 does not give 12 distinct tasks \(ValueError: Sample larger"
    with pytest.raises(ConfigurationError, match=told):
        tasks_for("environment.train_tasks", Few(), 0, 12)
    assert len(tasks_for("environment.train_tasks", Few(), 0, 11)) == 11


def test_at_most_halves_what_it_asks_for() -> None:
    assert [len(at_most("x", Few(), 0, count)) for count in (1, 11, 12, 40)] == [1, 11, 6, 10]
    with pytest.raises(ConfigurationError, match=r"x: .* 1 distinct tasks \(ValueError: no tasks today\)"):
        at_most("x", None_(), 0, 100)


def test_few_tasks_are_demonstrated_over_and_over() -> None:
    def record(family: PointerChase, seed: int = 3):
        return record_demonstrations(family, RENDERER, seed=seed, count=40, max_turns=20, max_tokens=256)

    played = record(Few())
    assert len(played) == 40
    assert played == record(Few())
    prompts = {RENDERER.text(one.token_ids[: one.action_mask.index(True)]) for one in played}
    assert len(prompts) == 10
    assert len(set(played)) > 10, "another attempt each time"


class Shouts(PointerChase):
    def demonstrate(self, task: Task, rng: Random) -> Sequence[str]:
        return ["UP"]


def test_a_demonstration_beyond_the_alphabet_names_the_family_and_the_characters() -> None:
    with pytest.raises(EnvironmentFailed, match=r"a demonstration of pointer_chase/v1: .* \('PU'\): .* alphabet"):
        record_demonstrations(Shouts(), RENDERER, seed=3, count=2, max_turns=20, max_tokens=256)
