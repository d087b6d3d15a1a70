"""Environments that speak in token ids: what they say, and what was sampled, is never tokenised again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.engine.protocol import GenerationRequest
from driftline.environment import Message
from driftline.records import Trajectory
from driftline.rollout.episode import Episode
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.pool import EnvironmentPool
from tests.support.rollout import FAMILY, RENDERER, encode, resources, spec, started
from tests.support.token_environments import TokenFamily

EOS = 1


async def play(family: TokenFamily, pool: EnvironmentPool | None = None) -> tuple[Trajectory, list[tuple[int, ...]]]:
    contexts: list[tuple[int, ...]] = []

    def odd(request: GenerationRequest) -> list[int]:
        contexts.append(request.prompt_ids)
        return [*encode(">z"), 0, EOS]

    engine = await started(odd)
    using = resources(engine, family, step_deadline_s=60.0)
    if pool is not None:
        using = replace(using, pool=pool)
    trajectory = await Episode(spec(family.generate(0, 1)[0]), using).play()
    await engine.close()
    return trajectory, contexts


async def test_ids_go_both_ways_as_they_are() -> None:
    family = TokenFamily()
    trajectory, contexts = await play(family)
    sampled = (*encode(">z"), 0, EOS)
    assert (trajectory.status, trajectory.reason, trajectory.reward) == ("ok", "", 1.0)
    assert [ids for ids, _ in family.taken] == [sampled, sampled]
    assert family.taken[0][1] == RENDERER.text(sampled)
    assert contexts[1] == (*encode("?ab\n"), *sampled, *sampled[::-1])
    assert trajectory.token_ids == (*contexts[1], *sampled)
    assert [i for i, own in enumerate(trajectory.loss_mask) if own] == [*range(4, 8), *range(12, 16)]


async def test_so_they_do_from_a_process() -> None:
    name = "tests.support.token_environments:TokenFamily"
    async with EnvironmentPool(FAMILY, EnvironmentGuard(), placement="process", workers=1, name=name) as pool:
        trajectory, contexts = await play(TokenFamily(), pool)
    sampled = (*encode(">z"), 0, EOS)
    assert (trajectory.status, trajectory.reason) == ("ok", "")
    assert contexts[1] == (*encode("?ab\n"), *sampled, *sampled[::-1])


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ((Message("user", "a", (2,)), Message("user", "b")), "some messages have token ids and some have none"),
        ((Message("user", "a", (2, 4711)),), "answered with token id 4711, and the model has 0 to 42"),
        ((Message("user", "a", (-1,)),), "answered with token id -1"),
    ],
)
async def test_ids_that_cannot_be_fail_the_episode(prompt: tuple[Message, ...], reason: str) -> None:
    trajectory, _ = await play(TokenFamily(prompt))
    assert (trajectory.status, trajectory.reward) == ("env_error", None)
    assert reason in trajectory.reason
