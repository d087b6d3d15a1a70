"""Episodes of prescribed length through the episode, the collector and back into a trace."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.scripted import ScriptedEngine
from driftline.records import Trajectory
from driftline.rollout.episode import Episode
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.store.trace_export import export
from driftline.traces import EpisodeShape, groups_of, shape_of
from environments.trace_replay import TraceReplay, published_tail
from environments.trace_replay.family import tasks_of
from tests.support.rollout import encode, resources, spec, started
from tests.support.toy_run import Cell, ToyTrainer, create_run, run_all, toy_parameters

FAMILY = TraceReplay()
QUICK = tuple(
    replace(shape, tool_seconds=tuple(seconds / 10 for seconds in shape.tool_seconds))
    for shape in published_tail.generate(groups=6, group_size=4)
)
LONGEST = max(QUICK, key=lambda shape: shape.turns)


def counts(shape: EpisodeShape) -> tuple[Any, ...]:
    return shape.prompt_tokens, shape.sampled_tokens, shape.observation_tokens, shape.reward


async def play(engine: ScriptedEngine, shape: EpisodeShape, **limits: Any) -> Trajectory:
    (task,) = tasks_of([replace(shape, group=0, member=0)])
    trajectory = await Episode(spec(task), resources(engine, FAMILY, **limits)).play()
    await engine.close()
    return trajectory


async def test_a_turn_has_its_tokens_whatever_the_policy_says() -> None:
    """The policy here wants to end its turn at every token."""
    trajectory = await play(await started(lambda request: encode("\n") * 8), LONGEST)
    assert trajectory.status == "ok"
    assert trajectory.valid
    assert counts(shape_of(trajectory, "s")) == counts(LONGEST)
    assert len(trajectory.token_ids) == LONGEST.total_tokens


async def test_a_turn_that_comes_in_parts_has_its_tokens() -> None:
    trajectory = await play(await started(lambda request: encode("\n") * 2), LONGEST)
    assert trajectory.status == "ok"
    assert sum(trajectory.loss_mask) == sum(LONGEST.sampled_tokens)


async def test_the_environment_takes_its_seconds() -> None:
    began = time.perf_counter()
    trajectory = await play(await started(None), LONGEST)
    took = time.perf_counter() - began
    found = shape_of(trajectory, "s")
    assert LONGEST.environment_seconds <= found.environment_seconds <= took
    for recorded, again in zip(LONGEST.tool_seconds[:-1], found.tool_seconds, strict=False):
        assert recorded - 1e-3 <= again


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"max_tokens_per_turn": 2}, "raise rollout.max_tokens_per_turn (2)"),
        ({"context_tokens": 6}, "raise engine.max_model_len (6)"),
        ({"max_turns": 4}, "raise environment.max_turns"),
    ],
)
async def test_what_has_no_room_fails_and_is_not_cut(limits: dict[str, int], says: str) -> None:
    shape = replace(LONGEST, prompt_tokens=4)
    trajectory = await play(await started(None), shape, **limits)
    assert (trajectory.status, trajectory.reward) == ("env_error", None)
    assert says in trajectory.reason


async def test_an_engine_that_samples_fewer_tokens_is_at_fault() -> None:
    class Short(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Generation:
            return await super().generate(replace(request, max_tokens=request.max_tokens - 1))

    engine = Short()
    await engine.start()
    (task,) = tasks_of([replace(LONGEST, group=0, member=0)])
    episode = Episode(spec(task), resources(engine, FAMILY))
    trajectory = await episode.play()
    await engine.close()
    assert trajectory.status == "engine_error"
    tokens = LONGEST.sampled_tokens[0]
    told = f"the engine ended a turn by length with {tokens - 1} tokens, and {tokens} were asked for"
    assert trajectory.reason == told
    assert episode.failure is not None


class Quick(TraceReplay):
    """The family over `QUICK`."""

    def generate(self, seed: int, count: int) -> Any:
        return tasks_of(QUICK)[:count]


async def collected(slots: int) -> tuple[RunStore, list[tuple[EpisodeShape, ...]]]:
    """A run over the quick trace with so many episodes in flight, and the shapes of what it delivered."""
    params = toy_parameters(rollout={"episodes_in_flight": slots})
    run_store = create_run(MemoryStore(), params, family=Quick(), tasks=6, held_out=FAMILY.generate(0, 1))
    trainer = ToyTrainer(run_store, params, steps=2)
    await run_all(trainer, Cell(run_store, params, family=Quick(), script=None, options={"step_s": 0.0005}))
    return run_store, groups_of(export(run_store).trace)


async def test_two_ways_of_collecting_do_the_same_work_and_it_is_the_recorded_one() -> None:
    work = {task.id: members for task, members in zip(tasks_of(QUICK), groups_of(QUICK), strict=True)}
    delivered: list[dict[str, list[Any]]] = []
    for slots in (4, 16):
        run_store, groups = await collected(slots)
        ids = {group.number: group.task_id for group in run_store.new_groups()}
        delivered.append({ids[members[0].group]: [counts(shape) for shape in members] for members in groups})
    assert len(delivered[0]) == 6
    for one in delivered:
        assert one.items() <= {key: [counts(shape) for shape in members] for key, members in work.items()}.items()
    assert delivered[0] == delivered[1]


async def test_a_trace_of_a_replay_replays_to_itself(tmp_path: Path) -> None:
    run_store, groups = await collected(16)
    made = export(run_store)
    assert made.left_out == {}
    assert {shape.source for shape in made.trace} == {f"run {run_store.run}"}
    assert {shape.environment for shape in made.trace} == {"trace_replay/v1"}
    again = await play(await started(None), groups[0][0])
    assert counts(shape_of(again, "s")) == counts(groups[0][0])
