"""Proposing, validating and publishing tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from driftline.environment import Message, StepResult, Task
from driftline.errors import ConfigurationError, EnvironmentFailed
from driftline.refresh.proposing import Window
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from environments.pointer_chase import PointerChase
from tasks import refresh

FAMILY = PointerChase()


def test_proposals_are_reproducible_and_the_seed_changes_training_alone():
    first, again, other = (refresh.draw(FAMILY, 50, 20, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.train != other.train
    assert first.held_out == other.held_out


def test_training_and_held_out_tasks_are_disjoint_and_complete():
    found = refresh.draw(FAMILY, 300, 100, 0)
    train, held_out = {t.id for t in found.train}, {t.id for t in found.held_out}
    assert (len(train), len(held_out)) == (300, 100)
    assert not train & held_out


class FewTasks(PointerChase):
    """Draws all its tasks from ten."""

    def generate(self, seed: int, count: int) -> list[Task]:
        return super().generate(0, 10)[:count]


def test_held_out_tasks_are_taken_from_training():
    found = refresh.draw(FewTasks(), 6, 4, 0)
    assert not {t.id for t in found.train} & {t.id for t in found.held_out}


def test_a_family_with_too_few_tasks_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match=r"environment.train_tasks: .* has only 6 tasks"):
        refresh.draw(FewTasks(), 7, 4, 0)


@pytest.mark.parametrize(("counts", "parameter"), [((8, 20), "held_out_tasks"), ((90, 9), "train_tasks and .*")])
def test_a_bare_refusal_names_the_family_the_count_and_the_parameter(counts: tuple[int, int], parameter: str):
    """As `random.sample` raises it."""
    family = DrawnFromEleven()
    asked = counts[1] if counts[1] > 11 else sum(counts)
    with pytest.raises(ConfigurationError, match=rf"environment\.{parameter}: pointer_chase/v1 .* {asked} distinct"):
        refresh.draw(family, *counts, 0)


class DrawnFromEleven(PointerChase):
    def generate(self, seed: int, count: int) -> list[Task]:
        return Random(seed).sample(super().generate(0, 11), count)


async def test_the_oracles_solutions_are_accepted():
    proposal = refresh.draw(FAMILY, 640, 12, 0)
    assert await refresh.validate(FAMILY, proposal) == 12 + 64


def test_publishing_names_both_sets_and_repeating_it_changes_nothing():
    store, proposal = MemoryStore(), refresh.draw(FAMILY, 30, 10, 0)
    first, second = (refresh.publish(store, "pc", proposal) for _ in range(2))
    assert first == second
    assert {t.id for t in tasksets.load(store, "pc", first.version)} == {t.id for t in proposal.train}
    held_out = tasksets.load(store, "pc-held-out", first.held_out_version)
    assert {t.id for t in held_out} == {t.id for t in proposal.held_out}


class Broken:
    """An environment that misbehaves as told."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        if self.how == "raises":
            raise KeyError("no such file")
        if self.how == "hangs":
            await asyncio.sleep(60)
        return () if self.how == "has no prompt" else (Message("user", "?"),)

    async def step(self, action: str) -> StepResult:
        if self.how == "returns NaN":
            return StepResult(reward=float("nan"), terminated=True)
        return StepResult(reward=0.0, terminated=True, success=False)

    async def close(self) -> None: ...


class BrokenFamily(PointerChase):
    how = "raises"

    def make(self, *, max_turns: int = 20) -> Any:
        return Broken(self.how)

    def oracle(self, task: Task) -> Sequence[str]:
        return ["=1"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "KeyError"),
        ("hangs", "longer than"),
        ("has no prompt", "no prompt"),
        ("returns NaN", "nan"),
        ("refuses", "does not accept its oracle's solution"),
    ],
)
async def test_a_broken_environment_is_found_before_its_tasks_are_published(
    how: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(refresh, "STEP_DEADLINE_S", 0.05)
    monkeypatch.setattr(BrokenFamily, "how", how)
    family = BrokenFamily()
    with pytest.raises(EnvironmentFailed, match=message):
        await refresh.validate(family, refresh.draw(family, 2, 1, 0))


async def test_windows_are_worked_on_a_few_at_a_time_and_none_is_left_when_one_fails(monkeypatch: pytest.MonkeyPatch):
    under_way, most, ended = 0, 0, list[int]()

    async def work(environment: str, window: Window, step_deadline_s: float) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0.001 if window.seed != 7 else 0.0)
            if window.seed == 7:
                raise EnvironmentFailed("window 7")
            ended.append(window.seed)
        finally:
            under_way -= 1
        return 1

    monkeypatch.setattr(refresh, "propose_and_validate", work)
    windows = [Window(FAMILY.id, seed, 10) for seed in range(6)]
    await refresh.validate_windows(FAMILY.id, windows, 1.0)
    assert (sorted(ended), most) == ([0, 1, 2, 3, 4, 5], refresh.WINDOWS_AT_ONCE)
    with pytest.raises(EnvironmentFailed, match="window 7"):
        await refresh.validate_windows(FAMILY.id, [*windows, Window(FAMILY.id, 7, 10), *windows], 1.0)
    assert under_way == 0
    assert len(ended) < 6 + 12
    assert asyncio.all_tasks() == {asyncio.current_task()}
