"""The arms of the rollout ladder, each played on one warm engine; `rollout_ladder` says what they are."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.ladder_baselines import Barrier, Batches, Delivered, Interval, Lockstep
from benchmarks.ladder_bound import Bound, measure_bound
from benchmarks.ladder_free import Taker, collected
from benchmarks.local_run import base_model
from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.tokens import open_renderer
from driftline.engine.vllm_engine import VllmEngine
from driftline.environment import Task
from driftline.params import RunParameters, settings
from driftline.rollout import assignment
from driftline.rollout.bootstrap import Surroundings
from driftline.rollout.episode import EpisodeLimits, EpisodeResources
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.store import files, tasksets
from driftline.store.run_store import RunStore
from driftline.traces import write as write_trace
from environments.trace_replay import POINTER_CHASE, PUBLISHED_TAIL, TraceReplay
from environments.trace_replay import published_tail as generator
from tests.support.seaweed import Seaweed
from tests.support.toy_run import create_run

GROUPS, GROUP_SIZE, GROUPS_A_BATCH = 64, 8, 16
SLOTS = GROUPS * GROUP_SIZE
"""Of the engine, for all arms: none waits for a slot, so what is in flight is the arm's own doing."""
BALANCED_LEAD_BATCHES = 1
SIGMAS = (0.5, 1.3)
ENGINE_CPU, COLLECTOR_CPU = 0, 1
ARM_DEADLINE_S = 400.0
PLAIN = ("a0", "a", "b")
ARMS = (*PLAIN, "c", "d", "e", "f", "g", "h", "i")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm, once."""

    wall_clock_s: float
    waits_s: list[float]
    """How long the trainer waited for each batch."""
    cache_hit_share: float
    members: list[Delivered]
    generated_mean: float
    """Tokens that the engine sampled for an episode that was begun, in the mean."""
    began: float

    @property
    def requests(self) -> list[Interval]:
        """All requests of all members, in seconds since the arm began."""
        return [(start - self.began, end - self.began) for one in self.members for start, end in one.requests]


class LadderEngine(VllmEngine):
    """An engine that reuses no prefixes while `reuse` is off, and knows for which episodes it was asked."""

    reuse = False
    episodes: set[str]

    async def serve_run(self, run: str) -> None:
        """Serve another run."""
        await super().serve_run(run)
        self.episodes = set()

    @property
    def generated_mean(self) -> float:
        """Tokens an episode."""
        status = self.status()
        return (status.generated_tokens - status.scored_tokens) / len(self.episodes)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn."""
        self.episodes.add(request.id.rpartition("/")[0])
        return await super().generate(replace(request, reuse_prefix=self.reuse))


def parameters(arm: str, lead_batches: int) -> RunParameters:
    """The run of an arm."""
    everything = arm == "i"
    return RunParameters.model_validate(
        {
            "model": {"warm_start_steps": 0},
            "environment": {"id": "trace_replay/v1", "task_set": "ladder", "max_turns": 20},
            "rollout": {
                "groups_per_step": GROUPS_A_BATCH, "group_size": GROUP_SIZE, "episodes_in_flight": SLOTS,
                "concurrency": "adaptive" if everything or arm == "f" else "fixed",
                "surplus_members": 2 if everything or arm == "g" else 0,
            },
            "scheduling": {"order": "predicted" if everything or arm == "e" else "number"},
            "overlap": {"lead_groups": lead_batches * GROUPS_A_BATCH, "max_lag_versions": 64},
            "engine": {"cpus": (ENGINE_CPU,), "max_num_seqs": SLOTS},
            "tracking": {"traces_every_steps": 0},
        }
    )  # fmt: skip


class Ladder:
    """Plays arms on one warm engine."""

    def __init__(self, seaweed: Seaweed, folder: Path, lead_batches: int) -> None:
        self._store = seaweed.store(180.0)
        self._folder = folder
        self._lead_batches = lead_batches
        self._number = 0
        self.families = {
            "published_tail": PUBLISHED_TAIL,
            "pointer_chase": POINTER_CHASE,
            **{f"published_tail_{sigma:g}": self._with_sigma(sigma) for sigma in SIGMAS},
        }

    async def begin(self) -> None:
        """Make the model, and start the engine: it on its processor, this process on the other."""
        params = parameters("c", self._lead_batches)
        self._model = await base_model(params, self._store, self._folder)
        model_dir = await asyncio.to_thread(files.local_model, self._store, self._model, settings().work_dir)
        self._engine = LadderEngine(params.engine, model_dir, run="none")
        await self._engine.start()
        move_to(COLLECTOR_CPU)
        self._renderer = open_renderer(model_dir, "plain", stop=PUBLISHED_TAIL.stop)
        self._model_dir = model_dir

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()

    async def play(self, arm: str, trace: str, train_s: float) -> Outcome:
        """Play an arm once; at a lead of one batch where training takes time."""
        self._number += 1
        lead_batches = BALANCED_LEAD_BATCHES if train_s else self._lead_batches
        params, run = parameters(arm, lead_batches), f"{arm}-{trace.replace('_', '-')}-{self._number}"
        family = self.families[trace]
        held_out = TraceReplay().generate(99, 1)
        run_store = create_run(
            self._store, params, run=run, family=family, tasks=GROUPS, held_out=held_out, model=self._model
        )
        await self._engine.serve_run(run)
        self._engine.reuse = arm in ("d", "i")
        tasks = self._tasks(run_store)
        async with asyncio.timeout(ARM_DEADLINE_S):
            if arm in PLAIN:
                outcome = await self._plain(arm, params, run, tasks, train_s)
            else:
                outcome = await self._free(arm, params, run_store, family, tasks, train_s)
        check(outcome.members, tasks)
        return outcome

    async def bound(self, trace: str) -> Bound:
        """What no arm can be quicker than."""
        tasks = self.families[trace].generate(0, GROUPS)
        await self._engine.serve_run(f"bound-{trace}")
        self._engine.reuse = True
        return await measure_bound(self._engine, self._resources(parameters("b", 0)), tasks, slots=SLOTS)

    async def _plain(
        self, arm: str, params: RunParameters, run: str, tasks: Sequence[Task], train_s: float
    ) -> Outcome:
        limits = EpisodeLimits.of(params)
        way = (
            Barrier(self._resources(params), run, SLOTS)
            if arm == "b"
            else Lockstep(self._engine, self._renderer, limits, parallel=arm == "a")
        )
        members: list[Delivered] = []
        began, waits_s, ended = time.time(), list[float](), 0.0
        for batch in Batches(tasks, GROUP_SIZE, GROUPS_A_BATCH):
            asked = time.time()
            members += await way.batch(batch, tasks)
            ended = time.time()
            waits_s.append(ended - asked)
            await asyncio.sleep(train_s)
        return self._outcome(ended - began, waits_s, members, began)

    async def _free(
        self, arm: str, params: RunParameters, run_store: RunStore, family: TraceReplay, tasks: Sequence[Task],
        train_s: float,
    ) -> Outcome:  # fmt: skip
        taker = Taker(run_store, len(tasks), GROUPS_A_BATCH, train_s, in_order=arm not in ("h", "i"))
        found = Surroundings(run_store, run_store.describe(), params, family, self._model_dir, self._renderer)
        await collected(found, self._engine, taker)
        return self._outcome(taker.ended - taker.began, taker.waits_s, taker.members, taker.began)

    def _outcome(self, wall_s: float, waits_s: list[float], members: list[Delivered], began: float) -> Outcome:
        engine = self._engine
        hits = engine.status().prefix_hit_share
        return Outcome(wall_s, waits_s, hits, members, engine.generated_mean, began)

    def _resources(self, params: RunParameters) -> EpisodeResources:
        limits = EpisodeLimits.of(params)
        return EpisodeResources(TraceReplay(), self._engine, self._renderer, limits, EnvironmentGuard(), BusyMeter())

    def _tasks(self, run_store: RunStore) -> list[Task]:
        version = run_store.describe().task_set
        tasks = tasksets.load(self._store, "ladder", version)
        return [tasks[assignment.task_index(0, group, version, len(tasks))] for group in range(GROUPS)]

    def _with_sigma(self, sigma: float) -> TraceReplay:
        path = self._folder / f"published-tail-{sigma:g}.jsonl"
        write_trace(path, generator.generate(sigma=sigma))
        return TraceReplay(path)


def move_to(cpu: int) -> None:
    """Move all threads of this process to a processor; the engine's processes stay where they are."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cpu})


def check(members: Sequence[Delivered], tasks: Sequence[Task]) -> None:
    """Refuse an arm that did not deliver every member, turn for turn.

    Raises:
        RuntimeError: Names the first difference.
    """
    wanted = {
        (group, member): tuple(shape["sampled_tokens"])
        for group, task in enumerate(tasks)
        for member, shape in enumerate(task.payload["members"])
    }
    found = {(one.group, one.member): one.shape for one in members}
    if len(members) != len(found) or found != wanted:
        odd = sorted(place for place in {*found, *wanted} if found.get(place) != wanted.get(place))
        raise RuntimeError(f"{len(members)} members delivered of {len(wanted)}; the first difference: {odd[:1]}")
