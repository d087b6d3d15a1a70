"""An episode that runs out of time: `timeout`, or judged as it stands; a reward is never made up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from driftline.environment import Message, StepResult
from driftline.records import Trajectory
from driftline.rollout.episode import Episode
from tests.support.rollout import Behaviour, OddEnvironment, OddFamily, encode, forever, resources, spec, started


async def goes_on(_: str) -> StepResult:
    return StepResult((Message("tool", ":ab\n"),))


class Judging(OddFamily):
    """Its environments judge what there is."""

    verdict: StepResult | Exception | None = StepResult(reward=0.25, success=False)
    judged: int = 0

    def make(self, *, max_turns: int = 20) -> Any:
        self.opened += 1
        return _Judging(self)


class _Judging(OddEnvironment):
    async def judge(self) -> Any:
        family = self._family
        assert isinstance(family, Judging)
        family.judged += 1
        if isinstance(family.verdict, Exception):
            raise family.verdict
        return family.verdict


async def run_out(family: OddFamily, *, cancel: bool = False, **limits: Any) -> Trajectory:
    """Two turns of four tokens, then the engine takes for ever."""
    engine, turns = await started(None), 0

    def then_hang(_: object) -> list[int]:
        nonlocal turns
        turns += 1
        if turns == 3:
            engine.hang()
        return encode(">zz\n")

    engine._script = then_hang  # pyright: ignore[reportPrivateUsage]
    options: dict[str, Any] = {"episode_deadline_s": 0.5, "judge_at_deadline": True} | limits
    episode = Episode(spec(family.generate(0, 1)[0]), resources(engine, family, **options))
    playing = asyncio.create_task(episode.play())
    if cancel:
        while turns < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        episode.cancel("too old")
    trajectory = await playing
    await engine.close()
    assert family.opened == family.closed == 1
    assert len(asyncio.all_tasks()) == 1
    return trajectory


async def test_the_environment_judges_what_is_there() -> None:
    family = Judging(Behaviour(step=goes_on))
    trajectory = await run_out(family)
    assert (trajectory.status, trajectory.reward, trajectory.success) == ("truncated", 0.25, False)
    assert trajectory.valid
    assert "judged as it stood" in trajectory.reason
    assert "environment.episode_deadline_s" in trajectory.reason
    assert (trajectory.turns, trajectory.sampled_tokens, family.judged) == (2, 8, 1)
    assert trajectory.loss_mask[-1], "what was observed after the last sampled token says nothing"


async def test_it_is_a_timeout_unless_that_is_asked_for() -> None:
    family = Judging(Behaviour(step=goes_on))
    trajectory = await run_out(family, judge_at_deadline=False)
    assert (trajectory.status, trajectory.reward, family.judged) == ("timeout", None, 0)


async def test_without_a_judge_or_a_reward_it_is_a_timeout() -> None:
    """trl#6427, #6430: no answer scored 0."""
    trajectory = await run_out(OddFamily(Behaviour(step=goes_on)))
    assert (trajectory.status, trajectory.reward) == ("timeout", None)
    family = Judging(Behaviour(step=goes_on))
    family.verdict = StepResult()
    trajectory = await run_out(family)
    assert (trajectory.status, trajectory.reward) == ("timeout", None)


@pytest.mark.parametrize("verdict", [ValueError("broken"), None])
async def test_a_judge_that_fails_gives_no_reward(verdict: Any) -> None:
    family = Judging(Behaviour(step=goes_on))
    family.verdict = verdict
    trajectory = await run_out(family)
    assert (trajectory.status, trajectory.reward) == ("env_error", None)


async def test_an_environment_that_is_late_itself_is_not_asked() -> None:
    family = Judging(Behaviour(step=forever))
    trajectory = await run_out(family, step_deadline_s=60.0)
    assert (trajectory.status, trajectory.reward, family.judged) == ("timeout", None, 0)


async def test_one_that_was_cancelled_is_not_judged() -> None:
    family = Judging(Behaviour(step=goes_on))
    trajectory = await run_out(family, cancel=True, episode_deadline_s=60.0)
    assert (trajectory.status, trajectory.reward, family.judged) == ("cancelled", None, 0)
