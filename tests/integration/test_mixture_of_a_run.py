"""A run over several environments: a real cell and the real trainer loop, over a store in memory.

The engine is a script that follows a chain, or says something of the kind.
"""

from __future__ import annotations

import asyncio
from typing import Any

from driftline.environment import resolve
from driftline.errors import LimitExceeded
from driftline.params import RunParameters
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from tests.support.loop_thread import LoopThread
from tests.support.rollout import undecided
from tests.support.toy_run import Cell, create_run, toy_parameters
from tests.support.training import FakeGroup

STEPS = 30
DEADLINE_S = 120.0
BROKEN = "tests.support.environments:Broken"
EPISODES = 48


def parameters(environment: str, **limits: Any) -> RunParameters:
    return toy_parameters(
        environment={"id": environment, "max_turns": 8},
        rollout={"episodes_in_flight": 24},
        training={"steps": STEPS},
        limits={"environment_episodes": EPISODES, "failed_groups": 200, **limits},
    )


async def carry_out(params: RunParameters) -> tuple[RunStore, BaseException | None]:
    """A cell and a trainer until the run is over; returns what the trainer failed with."""
    store, family = MemoryStore(), resolve(params.environment.id)
    runs = create_run(store, params, family=family, tasks=48)
    trainer = LoopThread(runs, params, FakeGroup())
    trainer.start()
    async with asyncio.timeout(DEADLINE_S):
        await Cell(RunStore(store, runs.run), params, family=family, script=undecided).run()
        await trainer.end(DEADLINE_S)
    return runs, trainer.failure


async def test_a_cell_plays_each_environment_of_a_mixture_and_the_trainer_tells_them_apart():
    params = parameters("pointer_chase/v1 * 2 + tests.support.environments:QuickDice")
    runs, failure = await carry_out(params)
    assert failure is None
    groups = RunStore(runs.store, runs.run).new_groups()
    by_environment: dict[str, int] = {}
    for group in groups:
        [environment] = {member.environment for member in group.trajectories}
        by_environment[environment] = by_environment.get(environment, 0) + 1
        assert group.valid_members == params.rollout.group_size
    assert set(by_environment) == {"pointer_chase/v1", "quick-dice/v1"}
    assert 1.2 < by_environment["pointer_chase/v1"] / by_environment["quick-dice/v1"] < 3.0
    records = runs.steps()
    assert len(records) == STEPS
    assert {name for record in records for name in record.by_environment} == set(by_environment)
    assert [record.ledger.imbalance for record in records if record.ledger] == [0] * STEPS


async def test_an_environment_that_fails_is_quarantined_and_the_run_goes_on_with_the_rest():
    """NeMo-RL#2207: no reward is made up for what failed."""
    runs, failure = await carry_out(parameters(f"pointer_chase/v1 + {BROKEN}"))
    assert failure is None
    head, _ = runs.read_head()
    assert (head.state, head.step) == ("finished", STEPS)
    (_, first), (begins, rest) = head.task_sets
    assert {task.environment for task in tasksets.load(runs.store, "pointer-chase", rest)} == {"pointer_chase/v1"}
    records = runs.steps()
    assert {use.task_set for record in records for use in record.groups} == {first, rest}
    groups = RunStore(runs.store, runs.run).new_groups()
    broken = [group for group in groups if group.trajectories[0].environment == "broken/v1"]
    assert len(broken) * 4 >= EPISODES, "it was given a chance"
    assert max(group.number for group in broken) < begins, "and played no more"
    assert {member.status for group in broken for member in group.trajectories} == {"env_error"}
    assert {member.reward for group in broken for member in group.trajectories} == {None}
    given_up = {give_up.group for record in records for give_up in record.give_ups}
    assert {group.number for group in broken} <= given_up, "none was trained on"
    assert records[-1].metrics[metrics.ENVIRONMENTS_QUARANTINED] == 1.0
    assert [record.ledger.imbalance for record in records if record.ledger] == [0] * STEPS


async def test_with_no_environment_left_the_run_fails_and_says_so():
    params = parameters(f"{BROKEN} + tests.support.environments:BrokenToo", failed_groups=8)
    runs, failure = await carry_out(params)
    assert isinstance(failure, LimitExceeded)
    head, _ = runs.read_head()
    assert head.state == "failed"
    assert "mend the environment" in head.reason
