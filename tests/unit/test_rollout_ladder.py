"""The rollout ladder: its arms deliver the same members in their own order, over the scripted engine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import ladder_arms
from benchmarks.ladder_baselines import Barrier, Batches, Delivered, Lockstep
from benchmarks.ladder_bound import measure_bound
from benchmarks.ladder_free import Taker
from benchmarks.ladder_table import summarise, table
from driftline.engine.protocol import GenerationRequest
from driftline.environment import Task
from driftline.records import Group
from driftline.rollout.episode import EpisodeLimits
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from environments.trace_replay import TraceReplay
from tests.support.records import trajectory
from tests.support.rollout import RENDERER, resources, started

TASKS = TraceReplay().generate(5, 4)
EIGHT = Batches(TASKS, 8, 2)


def digits(request: GenerationRequest) -> list[int]:
    """As many tokens as are asked for, which depend on the request's seed."""
    return [5 + (request.seed + index) % 7 for index in range(request.max_tokens)]


def quick(task: Task) -> Task:
    members = [shape | {"tool_seconds": [0.0] * len(shape["tool_seconds"])} for shape in task.payload["members"]]
    return Task(task.id, task.environment, {**task.payload, "members": members})


@pytest.mark.parametrize("parallel", [True, False])
async def test_lockstep_and_barrier_deliver_the_same_members(parallel: bool) -> None:
    engine = await started(digits, max_num_seqs=256)
    tasks = [quick(task) for task in TASKS]
    base = resources(engine, TraceReplay())
    lockstep = Lockstep(engine, RENDERER, base.limits, parallel=parallel)
    barrier = Barrier(base, "r", slots=8)
    for batch in EIGHT:
        one, other = await lockstep.batch(batch, tasks), await barrier.batch(batch, tasks)
        assert [(m.group, m.member) for m in one] == [(m.group, m.member) for m in other] == batch
        assert [m.turns for m in one] == [m.turns for m in other], "token for token"
        ladder_arms.check([*one, *await _rest(lockstep, batch, tasks)], tasks)
    await engine.close()


async def _rest(way: Lockstep, done: Sequence[tuple[int, int]], tasks: Sequence[Task]) -> list[Delivered]:
    return [m for batch in EIGHT if batch != done for m in await way.batch(batch, tasks)]


async def test_an_arm_that_lacks_a_member_or_cuts_a_turn_is_refused() -> None:
    engine = await started(digits, max_num_seqs=256)
    tasks = [quick(task) for task in TASKS]
    way = Lockstep(engine, RENDERER, EpisodeLimits.of(ladder_arms.parameters("a", 1)), parallel=True)
    members = [member for batch in EIGHT for member in await way.batch(batch, tasks)]
    ladder_arms.check(members, tasks)
    with pytest.raises(RuntimeError, match=r"31 members delivered of 32; the first difference: \[\(0, 3\)\]"):
        ladder_arms.check([*members[:3], *members[4:]], tasks)
    members[9].turns[0] = members[9].turns[0][:-1]
    with pytest.raises(RuntimeError, match=r"\(1, 1\)"):
        ladder_arms.check(members, tasks)
    await engine.close()


async def test_environments_of_a_lockstep_batch_wait_for_each_other_or_not() -> None:
    engine = await started(digits, max_num_seqs=256)
    limits = resources(engine).limits
    shape = TASKS[0].payload["members"][0] | {
        "sampled_tokens": [2], "observation_tokens": [0], "tool_seconds": [0.05], "reset_seconds": 0.0,
        "reward_seconds": 0.0,
    }  # fmt: skip
    tasks = [Task("t", "trace_replay/v1", {"group": 0, "members": [shape] * 8})]
    batch = [(0, member) for member in range(8)]
    seconds: dict[bool, float] = {}
    for parallel in (True, False):
        began = time.monotonic()
        await Lockstep(engine, RENDERER, limits, parallel=parallel).batch(batch, tasks)
        seconds[parallel] = time.monotonic() - began
    assert seconds[False] >= 8 * 0.05
    assert seconds[True] < seconds[False] / 2
    await engine.close()


async def test_the_bound_is_the_longer_of_all_tokens_and_the_longest_episode() -> None:
    engine = await started(digits, max_num_seqs=256, step_s=0.001)
    found = await measure_bound(engine, resources(engine, TraceReplay()), TASKS, slots=16)
    assert found.seconds == max(found.tokens_s, found.longest_s)
    tokens = sum(sum(shape["sampled_tokens"]) for task in TASKS for shape in task.payload["members"])
    assert found.tokens_s == pytest.approx(tokens / found.throughput)
    tools = max(sum(shape["tool_seconds"]) for task in TASKS for shape in task.payload["members"])
    assert found.longest_s >= tools
    await engine.close()


def finished(*numbers: int) -> list[Group]:
    return [Group(number, "t", "v1", (trajectory(number, 0),)) for number in numbers]


def test_batches_by_number_wait_for_a_straggler_and_others_carry_it_over() -> None:
    run_store = RunStore(MemoryStore(), "r")
    by_number = Taker(run_store, 8, 2, 0.0, in_order=True)
    carried = Taker(run_store, 8, 2, 0.0, in_order=False)

    def taken(taker: Taker, ready: Sequence[Group], before: int) -> list[int]:
        return [group.number for group in taker._batch(ready, before)]  # pyright: ignore[reportPrivateUsage]

    assert taken(by_number, finished(3, 2, 0), 0) == []
    assert taken(carried, finished(3, 2, 0), 0) == [0, 2]
    assert taken(by_number, finished(3, 1, 0), 0) == [0, 1]
    assert taken(by_number, finished(3, 2), 2) == [2, 3]
    assert taken(carried, finished(7), 6) == []


def test_the_table_has_ratios_of_medians() -> None:
    def kept(*walls: float) -> list[dict[str, float]]:
        same = {"trainer_wait_s": 1.0, "cache_hit_share": 0.5, "length_bias": -0.01, "length_bias_halfway": 0.1}
        return [same | {"wall_clock_s": wall, "same_tokens_share": 1.0} for wall in walls]

    found = {
        "arms": {"a": kept(20.0, 22.0, 18.0), "b": kept(10.0, 10.0, 90.0), "i": kept(4.0, 5.0, 6.0)},
        "balanced": {"b": kept(1.0), "i": [kept(1.0)[0] | {"trainer_wait_s": 0.25}]},
        "bound": {"tokens_s": 1.0, "longest_s": 4.0, "throughput": 1.0, "requests_s": 2.0},
    }
    rows = {row["arm"]: row for row in summarise(found)}
    assert rows["i"]["wall_clock_s"] == {"median": 5.0, "all": [4.0, 5.0, 6.0]}
    assert (rows["i"]["against_a"], rows["i"]["against_b"], rows["i"]["against_bound"]) == (0.25, 0.5, 1.25)
    assert rows["i"]["against_a0"] is None
    assert rows["i"]["trainer_wait_against_b"] == 0.25
    assert rows["a"]["trainer_wait_s"] == 1.0, "it has no lead: how long training takes makes no difference"
    assert rows["b"]["length_bias"] == -0.01
    assert table([rows["i"]]).splitlines()[2].startswith("| i | 5 | - | 0.25 | 0.5 | 1.25 | 2.5 | 0.25 |")


def test_arms_differ_in_one_technique_and_all_have_the_same_slots() -> None:
    plain = ladder_arms.parameters("c", 1).model_dump()
    for arm, section, field in [
        ("e", "scheduling", "order"), ("f", "rollout", "concurrency"), ("g", "rollout", "surplus_members")
    ]:  # fmt: skip
        other = ladder_arms.parameters(arm, 1).model_dump()
        assert other[section][field] != plain[section][field]
        other[section][field] = plain[section][field]
        assert other == plain
    assert ladder_arms.parameters("h", 1).model_dump() == ladder_arms.parameters("d", 1).model_dump() == plain
    everything = ladder_arms.parameters("i", 1)
    assert everything.rollout.episodes_in_flight == plain["rollout"]["episodes_in_flight"]


ASKED_OF_EACH = {
    "wall_clock_s", "against_a", "against_b", "against_bound", "trainer_wait_s", "cache_hit_share", "length_bias"
}  # fmt: skip


def test_the_committed_results_have_the_figures_that_are_asked_of_every_arm() -> None:
    traces = json.loads(Path("benchmarks/results/rollout-ladder.json").read_text())["traces"]
    assert {"published_tail", "pointer_chase", "published_tail_0.5", "published_tail_1.3"} == set(traces)
    for name, found in traces.items():
        rows = summarise({"balanced": {}} | found)
        assert {row["arm"] for row in rows} >= {"a", "b", "i"}
        assert all(set(row) >= ASKED_OF_EACH for row in rows)
        repeats = {len(row["wall_clock_s"]["all"]) for row in rows}
        assert min(repeats) >= (3 if "1.3" in name or "0.5" in name else 5)


async def test_nothing_is_left_of_an_arm() -> None:
    engine = await started(digits, max_num_seqs=256)
    await Barrier(resources(engine, TraceReplay()), "r", slots=4).batch([(0, 0)], [quick(TASKS[0])])
    await engine.close()
    assert len(asyncio.all_tasks()) == 1
