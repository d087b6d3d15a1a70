from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftline.engine.protocol import GenerationRequest
from driftline.environment import StepResult, Task, resolve
from driftline.errors import ConfigurationError, DriftlineError, EngineDied
from driftline.records import EvaluationResult, HeldOutOutcome
from driftline.records import decode as decode_record
from driftline.records import encode as encode_record
from driftline.rollout.bootstrap import Surroundings
from driftline.rollout.evaluate import evaluate, policy_versions, result_of
from driftline.store.memory import MemoryStore
from driftline.tracking import metrics
from tests.support.rollout import FAMILY, RENDERER, Behaviour, OddFamily, decode, encode, solve, started
from tests.support.toy_run import Cell, RecordingSink, ToyTrainer, create_run, run_all, toy_parameters

HELD_OUT = FAMILY.generate(99, 40)


def surroundings(family: Any = FAMILY, held_out: Sequence[Task] = (), **sections: dict[str, Any]) -> Surroundings:
    params = toy_parameters(**sections)
    run_store = create_run(MemoryStore(), params, family=family, held_out=held_out)
    return Surroundings(run_store, run_store.describe(), params, family, Path(), RENDERER)


async def trained(found: Surroundings, steps: int = 2) -> None:
    await run_all(ToyTrainer(found.run_store, found.parameters, steps), Cell(found.run_store, found.parameters))


def hasty(request: GenerationRequest) -> list[int]:
    """Solves tasks of one file, and guesses 00 in all others."""
    turn = solve(request)
    return turn if len(request.prompt_ids) == 4 or decode(turn)[0] == "=" else encode("=00\n")


async def test_success_over_all_held_out_tasks_for_each_version() -> None:
    found, sink = surroundings(held_out=HELD_OUT, evaluation={"episodes_per_task": 2}), RecordingSink()
    await trained(found)
    engine = await started(hasty)
    results = await evaluate(found, engine, sink, [0, 2])
    await engine.close()
    right = sum(
        len(FAMILY.oracle(task) or ()) == 2 or list(FAMILY.oracle(task) or ())[-1] == "=00" for task in HELD_OUT
    )
    assert 5 < right < 30
    for result, version in zip(results, [0, 2], strict=True):
        alone = {"pointer_chase/v1": HeldOutOutcome(40, 80, right / 40, right / 40, 0)}
        assert result == EvaluationResult(version, 40, 80, right / 40, right / 40, 0, result.seconds, alone)
    assert not [name for name, _, _ in sink.points if "_of/" in name], "one environment is the total"
    assert found.run_store.evaluations() == results
    assert engine.status().version is not None
    assert [(value, step) for name, value, step in sink.points if name == metrics.EVALUATION_SUCCESS] == [
        (right / 40, 0),
        (right / 40, 2),
    ]
    assert len(asyncio.all_tasks()) == 1


async def test_a_mixture_has_the_figures_of_each_environment_beside_the_total() -> None:
    """A policy that solves one of two environments has not half of both."""
    mixed = "pointer_chase/v1 * 3 + tests.support.environments:Broken + tests.support.environments:QuickDice"
    family, sink = resolve(mixed), RecordingSink()
    held_out = family.generate(99, 20)
    found = surroundings(family, held_out=held_out, environment={"id": mixed})
    await trained(replace(found, family=FAMILY), steps=0)
    engine = await started(solve)
    [result] = await evaluate(found, engine, sink, [0])
    await engine.close()
    chase, broken, dice = (result.by_environment[name] for name in ("pointer_chase/v1", "broken/v1", "quick-dice/v1"))
    assert (chase, broken) == (HeldOutOutcome(12, 12, 1.0, 1.0, 0), HeldOutOutcome(4, 4, None, None, 4))
    assert dice.success is not None
    assert (dice.tasks, dice.episodes, dice.invalid) == (4, 4, 0)
    assert result.success == (12 + 4 * dice.success) / 16
    assert (result.tasks, result.episodes, result.invalid) == (20, 20, 4)
    assert decode_record(EvaluationResult, encode_record(result)) == result
    told = {name: value for name, value, _ in sink.points if "_of/" in name}
    assert told == {
        "evaluation/success_of/pointer_chase/v1": 1.0,
        "evaluation/reward_mean_of/pointer_chase/v1": 1.0,
        "evaluation/invalid_episodes_of/pointer_chase/v1": 0.0,
        "evaluation/invalid_episodes_of/broken/v1": 4.0,
        "evaluation/success_of/quick-dice/v1": dice.success,
        "evaluation/reward_mean_of/quick-dice/v1": dice.success,
        "evaluation/invalid_episodes_of/quick-dice/v1": 0.0,
    }


async def test_versions_see_the_same_seeds_at_the_temperature_of_the_evaluation() -> None:
    asked: list[GenerationRequest] = []

    def note(request: GenerationRequest) -> list[int]:
        asked.append(request)
        return solve(request)

    found = surroundings(held_out=HELD_OUT[:4], evaluation={"temperature": 0.0})
    await trained(found)
    engine = await started(note)
    await evaluate(found, engine, RecordingSink(), [0, 1])
    await engine.close()
    half = len(asked) // 2
    seeds = [sorted((r.prompt_ids, r.seed) for r in part) for part in (asked[:half], asked[half:])]
    assert seeds[0] == seeds[1]
    assert {r.temperature for r in asked} == {0.0}


async def test_infrastructure_failures_are_left_out_and_counted() -> None:
    """NeMo-Gym#2015: 5-15% of the zeros were broken tools."""
    played = iter(range(100))

    async def breaks_every_other(action: str) -> StepResult:
        if next(played) % 2:
            raise ConnectionError("sandbox")
        return StepResult(reward=1.0, terminated=True, success=True)

    family = OddFamily(Behaviour(step=breaks_every_other))
    found = surroundings(family, held_out=family.generate(99, 10))
    await trained(replace(found, family=FAMILY, run_store=found.run_store), steps=0)
    engine = await started()
    (result,) = await evaluate(found, engine, RecordingSink(), [0])
    await engine.close()
    assert (result.success, result.episodes, result.invalid) == (1.0, 10, 5)


def test_an_evaluation_without_a_valid_episode_is_none() -> None:
    with pytest.raises(DriftlineError, match="none of 0"):
        result_of(0, 5, [], 1.0)


async def test_a_version_that_is_not_committed_is_refused() -> None:
    found = surroundings()
    await trained(found)
    assert [version.number for version in policy_versions(found.run_store, [2, 0, 1])] == [2, 0, 1]
    with pytest.raises(ConfigurationError, match=r"no policy version 9: it has \[0, 1, 2\]"):
        policy_versions(found.run_store, [0, 9])


async def test_an_engine_that_dies_fails_the_evaluation() -> None:
    found = surroundings(held_out=HELD_OUT)
    await trained(found)
    engine = await started(step_s=0.001)
    evaluating = asyncio.create_task(evaluate(found, engine, RecordingSink(), [0]))
    while engine.status().generated_tokens < 20:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    engine.die()
    with pytest.raises(EngineDied):
        await evaluating
    assert found.run_store.evaluations() == []
    await engine.close()
    assert len(asyncio.all_tasks()) == 1
