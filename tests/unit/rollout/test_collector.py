"""A cell over a scripted engine and a toy trainer: what it plays, shares, delivers and tells."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import pytest

from driftline.engine.protocol import GenerationRequest, UpdateReport
from driftline.engine.scripted import ScriptedEngine
from driftline.environment import StepResult
from driftline.records import PolicyVersion, WeightsManifest
from driftline.rollout import assignment, concurrency, scheduler
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.pins import pins
from driftline.tracking import metrics
from tests.support.rollout import Behaviour, OddFamily, solve
from tests.support.toy_run import RUN, Cell, ToyTrainer, check_once_each, create_run, run_all, toy_parameters


async def test_a_run_from_the_first_version_to_its_end() -> None:
    params = toy_parameters()
    run_store = create_run(MemoryStore(), params)
    trainer, cell = ToyTrainer(run_store, params, steps=8), Cell(run_store, params)
    (counters,) = await run_all(trainer, cell)
    trained = [group for batch in trainer.batches for group in batch]
    assert len(trained) == 24
    groups = run_store.new_groups()
    check_once_each(groups, 4)
    assert {group.number for group in trained} <= {group.number for group in groups}
    assert counters.groups == len(groups)
    assert counters.failed == counters.cancelled == 0
    assert all(t.reward == 1.0 for group in groups for t in group.trajectories)
    task_set = run_store.describe().task_set
    tasks = tasksets.load(run_store.store, "pointer-chase", task_set)
    for group in groups:
        assert group.task_id == tasks[assignment.task_index(0, group.number, task_set, 32)].id
        assert {t.attempt for t in group.trajectories} == {1}


async def test_a_run_whose_episodes_start_by_prediction() -> None:
    """Each is played once, and its requests go to the engine by the batch that they are for."""
    params = toy_parameters(scheduling={"order": "predicted"}, rollout={"episodes_in_flight": 4})
    run_store = create_run(MemoryStore(), params)
    priorities: dict[int, set[int]] = {}

    def note(request: GenerationRequest) -> list[int]:
        group = int(request.id.split("/")[1].split(".")[0])
        priorities.setdefault(group, set()).add(request.priority)
        return solve(request)

    trainer = ToyTrainer(run_store, params, steps=6)
    await run_all(trainer, Cell(run_store, params, script=note))
    groups = run_store.new_groups()
    check_once_each(groups, 4)
    assert len(groups) >= 18
    for group, given in priorities.items():
        assert {priority // scheduler.PRIORITIES_A_WINDOW for priority in given} == {group // 3}
    assert len({priority % scheduler.PRIORITIES_A_WINDOW for given in priorities.values() for priority in given}) > 1


@pytest.mark.parametrize("lead", [0, 2, 3, 7])
async def test_the_lag_never_exceeds_what_the_lead_allows(lead: int) -> None:
    params = toy_parameters(overlap={"lead_groups": lead})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=8)
    await run_all(trainer, Cell(run_store, params, options={"step_s": 0.0002}))
    bound = math.ceil(lead / 3)
    lags = [
        step - trajectory.segments[0].version
        for step, batch in enumerate(trainer.batches)
        for group in batch
        for trajectory in group.trajectories
    ]
    assert min(lags) >= 0
    assert max(lags) <= bound + (lead > 0)
    if lead == 0:
        assert set(lags) == {0}


@pytest.mark.parametrize("cells", [1, 2])
async def test_a_lead_that_changes_is_honoured_and_leaves_no_group_lost_or_stuck(cells: int) -> None:
    """Groups that were started under a deeper lead go on; those beyond the new one wait until it reaches them."""
    leads = [9, 0, 12, 3, *[0] * 15]
    params = toy_parameters(overlap={"lead_groups": 9}, rollout={"cells": cells})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=18, train_s=0.01, leads=leads)
    await run_all(trainer, *(Cell(run_store, params, f"c{n}", options={"step_s": 0.0005}) for n in range(cells)))
    trained = [group.number for batch in trainer.batches for group in batch]
    assert len(set(trained)) == len(trained) == 18 * 3
    check_once_each(run_store.new_groups(), 4)
    limits = [3 * (version + 1) + leads[version] for version in range(19)]
    for group in run_store.new_groups():
        version = min(trajectory.segments[0].version for trajectory in group.trajectories)
        assert group.number < max(limits[: version + 1]), "no group starts before a HEAD lets it"
    # Version 2 lets groups up to 20 start, which are used up with the batch from version 6.
    late = [(step, batch) for step, batch in enumerate(trainer.batches) if step > 6]
    assert {step - t.segments[0].version for step, batch in late for group in batch for t in group.trajectories} == {
        0
    }


async def test_synchronous_runs_with_one_seed_are_the_same() -> None:
    """The same seed in another run: the same tasks, tokens and rewards, in whatever order the episodes start."""
    outcomes: list[list[Any]] = []
    for order in ("number", "number", "predicted"):
        params = toy_parameters(overlap={"lead_groups": 0}, rollout={"temperature": 1.5}, scheduling={"order": order})
        run_store = create_run(MemoryStore(), params)
        trainer = ToyTrainer(run_store, params, steps=3)
        await run_all(trainer, Cell(run_store, params, script=None))
        outcomes.append(
            [
                (t.group, t.member, t.task_id, t.token_ids, t.reward)
                for batch in trainer.batches
                for group in batch
                for t in group.trajectories
            ]
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len({row[3] for row in outcomes[0]}) > 30


async def test_updates_in_flight_lose_nothing_and_leave_their_mark() -> None:
    params = toy_parameters(overlap={"lead_groups": 9})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=10)
    cell = Cell(run_store, params, options={"step_s": 0.001, "pause_s": 0.002})
    (counters,) = await run_all(trainer, cell)
    assert counters.failed == 0
    groups = run_store.new_groups()
    check_once_each(groups, 4)
    trajectories = [t for group in groups for t in group.trajectories]
    assert any(len(t.segments) > 1 for t in trajectories)
    for trajectory in trajectories:
        assert trajectory.loss_mask[trajectory.segments[0].start]
        assert all(a.start < b.start and a.version < b.version for a, b in pairwise(trajectory.segments))


async def test_two_cells_share_the_work_without_doubling_it() -> None:
    params = toy_parameters(rollout={"cells": 2, "episodes_in_flight": 6})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=8)
    options = {"step_s": 0.0005}
    cells = [Cell(run_store, params, name=name, options=options) for name in ("c0", "c1")]
    counters = await run_all(trainer, *cells)
    groups = run_store.new_groups()
    check_once_each(groups, 4)
    assert all(each.groups >= 5 for each in counters)
    assert {t.cell for group in groups for t in group.trajectories} == {"c0", "c1"}


async def test_groups_that_fail_are_delivered_given_up_and_replaced() -> None:
    """NeMo-RL#2207: an infrastructure error is no reward of 0; tinker-cookbook#822: what is given up is replaced."""

    async def fails_now_and_then(action: str) -> StepResult:
        if next(count) % 3 == 0:
            raise ValueError("broken tool")
        return StepResult(reward=1.0, terminated=True, success=True)

    count = iter(range(10**6))
    params = toy_parameters(overlap={"lead_groups": 0}, rollout={"group_size": 2})
    family = OddFamily(Behaviour(step=fails_now_and_then))
    run_store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(run_store, params, steps=4)
    (counters,) = await run_all(trainer, Cell(run_store, params, family=family))
    assert trainer.given_up
    assert counters.failed >= len(trainer.given_up)
    trained = [group for batch in trainer.batches for group in batch]
    assert len(trained) == 12
    assert not {group.number for group in trained} & set(trainer.given_up)
    assert family.opened == family.closed
    rewards = [t.reward for group in run_store.new_groups() for t in group.trajectories if t.status == "env_error"]
    assert set(rewards) == {None}


async def test_what_can_only_arrive_too_old_is_cancelled_and_counted() -> None:
    stuck = asyncio.Event()

    async def first_group_waits(action: str) -> StepResult:
        if not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        return StepResult(reward=1.0, terminated=True, success=True)

    params = toy_parameters(overlap={"lead_groups": 3, "max_lag_versions": 2})
    family = OddFamily(Behaviour(step=first_group_waits))
    run_store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(run_store, params, steps=6)
    (counters,) = await run_all(trainer, Cell(run_store, params, family=family))
    assert counters.cancelled == 1
    (cancelled,) = [t for group in run_store.new_groups() for t in group.trajectories if t.status == "cancelled"]
    assert "overlap.max_lag_versions (2)" in cancelled.reason
    assert cancelled.sampled_tokens > 0
    assert family.opened == family.closed


async def test_what_a_cell_tells() -> None:
    params = toy_parameters()
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=6, train_s=0.05)
    cell = Cell(run_store, params, options={"step_s": 0.0005, "pause_s": 0.001})
    (counters,) = await run_all(trainer, cell)
    (offset,) = run_store.offsets()
    assert (offset.cell, offset.running_episodes) == ("c0", 0)
    assert offset.version in (5, 6)
    assert (offset.probe_difference_nats, offset.refused_version) == (0.0, None)
    assert offset.generated_tokens > 0
    spans = run_store.spans()
    lanes = {span.lane for span in spans}
    assert lanes == {"rollout", "apply", "waiting/rollout"}
    busy = sorted((span.start_unix, span.end_unix) for span in spans if span.lane == "rollout")
    assert all(a[1] <= b[0] for a, b in pairwise(busy))
    assert {span.cause for span in spans if span.lane == "apply"} == {"update", "pause"}
    assert "trainer" in {span.cause for span in spans if span.lane == "waiting/rollout"}
    steps = {step for name, _, step in cell.sink.points if name == metrics.APPLY_SECONDS}
    assert {0, 1, 2, 3, 4, 5} <= steps
    assert any(name == metrics.TOKENS_PER_SECOND and value > 0 for name, value, _ in cell.sink.points)
    told = {name for name, _, _ in cell.sink.points}
    assert {metrics.LOOP_LAG_P50, metrics.LOOP_LAG_P99, metrics.EPISODES_LIMIT, metrics.PREFIX_HIT_SHARE} <= told
    for coverage in (metrics.PREDICTION_COVERAGE, metrics.TOKEN_PREDICTION_COVERAGE):
        covered = [value for name, value, _ in cell.sink.points if name == coverage]
        assert covered
        assert all(0 <= value <= 1 for value in covered)
    errors = metrics.PREDICTION_ERROR, metrics.TOKEN_PREDICTION_ERROR
    seconds, tokens = ([value for name, value, _ in cell.sink.points if name == error] for error in errors)
    assert len(seconds) == len(tokens) > 0
    assert seconds != tokens, "each of its own quantity"
    assert {metrics.PREDICTION_SKILL, metrics.TOKEN_PREDICTION_SKILL} <= told
    assert len(cell.sink.episodes) >= 4
    assert {episode.attributes["policy_version"] for episode in cell.sink.episodes} & {0, 2, 4}
    assert [event["version"] for event in cell.progress[:3]] == [0, 1, 2]
    assert cell.progress[-1]["groups"] <= counters.groups


async def test_a_head_is_acknowledged_only_when_the_engine_holds_its_version() -> None:
    """prime-rl#3050: while an update goes on, nothing of the next batch starts."""
    params = toy_parameters(overlap={"lead_groups": 0})
    run_store = create_run(MemoryStore(), params)
    trainer = ToyTrainer(run_store, params, steps=3)
    await run_all(trainer, Cell(run_store, params, options={"fetch_s": 0.15}))
    for step, batch in enumerate(trainer.batches):
        versions = {segment.version for group in batch for t in group.trajectories for segment in t.segments}
        assert versions == {step}


async def test_a_late_cell_pins_the_version_it_begins_with_while_it_takes_it_up() -> None:
    params = toy_parameters()
    store = MemoryStore()
    run_store = create_run(store, params)
    await ToyTrainer(run_store, params, steps=0, finish=False).run()
    pinned_meanwhile: list[list[PolicyVersion]] = []
    update = ScriptedEngine.update

    async def watched(engine: ScriptedEngine, manifest: WeightsManifest) -> UpdateReport:
        pinned_meanwhile.append([version for pin in pins(store, RUN) for version in pin.versions])
        return await update(engine, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedEngine, "update", watched)
        await run_all(ToyTrainer(run_store, params, steps=2), Cell(run_store, params))
    assert pinned_meanwhile[0] == [PolicyVersion(0, 1)]
    assert pinned_meanwhile[1:] == [[]] * (len(pinned_meanwhile) - 1), "later versions are HEAD's own"
    assert pins(store, RUN) == []


async def test_a_member_that_failed_is_replaced_by_a_surplus_one_and_a_slow_one_is_not() -> None:
    calls = 0

    async def first_of_many_fails(action: str) -> StepResult:
        nonlocal calls
        calls += 1
        if calls % 5 == 1:
            raise OSError("the sandbox is full")
        if calls % 5 == 2:
            await asyncio.sleep(0.2)
        return StepResult(reward=1.0, terminated=True, success=True)

    params = toy_parameters(rollout={"surplus_members": 2}, overlap={"lead_groups": 0})
    family = OddFamily(Behaviour(step=first_of_many_fails))
    run_store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(run_store, params, steps=2)
    (counters,) = await run_all(trainer, Cell(run_store, params, family=family))
    groups = run_store.new_groups()
    failed = [t for group in groups for t in group.trajectories if t.status == "env_error"]
    assert len(failed) == counters.failed > 0
    assert all(t.reward is None and "the sandbox is full" in t.reason for t in failed)
    for group in groups:
        lost = sum(t.group == group.number for t in failed)
        assert [t.member for t in group.trajectories] == list(range(4 + min(lost, 2))), "one for each that failed"
        assert group.valid_members == 4 - max(0, lost - 2)
    assert family.opened == family.closed == sum(len(group.trajectories) for group in groups)


async def test_a_group_that_fails_throughout_ends_when_its_surplus_is_used_up() -> None:
    async def fails(action: str) -> StepResult:
        raise OSError("gone")

    params = toy_parameters(rollout={"surplus_members": 3}, overlap={"lead_groups": 0})
    family = OddFamily(Behaviour(step=fails))
    run_store = create_run(MemoryStore(), params, family=family)
    trainer = ToyTrainer(run_store, params, steps=1)
    working = asyncio.gather(trainer.run(), Cell(run_store, params, family=family).run())
    async with asyncio.timeout(20.0):
        while len(trainer.given_up) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    groups = run_store.new_groups()
    assert {len(group.trajectories) for group in groups} == {7}
    assert {t.reward for group in groups for t in group.trajectories} == {None}


async def test_no_more_episodes_are_in_flight_than_the_engine_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that preempts beyond eight requests: the cell cuts back to what fits, and plays everything."""
    monkeypatch.setattr(concurrency, "PERIOD_S", 0.01)
    params = toy_parameters(rollout={"episodes_in_flight": 64, "groups_per_step": 8, "group_size": 8})
    run_store = create_run(MemoryStore(), params)
    cell = Cell(run_store, params, options={"step_s": 0.004, "bears": 8})
    trainer = ToyTrainer(run_store, params, steps=12)
    (counters,) = await run_all(trainer, cell)
    check_once_each(run_store.new_groups(), 8)
    limits = [value for name, value, _ in cell.sink.points if name == metrics.EPISODES_LIMIT]
    assert 24 > limits[-1] >= 8, limits
    assert max(limits) > limits[-1]
    assert cell.engine is not None
    assert cell.engine.status().preemptions > 0
    assert counters.failed == 0
