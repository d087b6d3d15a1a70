"""How long it takes to collect the same episodes in several ways, from lockstep to everything that Driftline does.

    python -m benchmarks.rollout_ladder --state ladder.json [--repeats 5] [--plots docs/images] [--json figures.json]

Each arm plays the same trace on the same real vLLM engine, which has one processor; whoever collects has the other.
Arms go in turn, a repeat at a time. `wall_clock_s` is from the first episode's start to the moment at which the
trainer's side holds the last batch. The trainer takes no time, and once more, at a lead of one batch, as long for a
batch as arm (b) takes to collect one: `trainer_wait_s` is how long it then waits for a batch, in the mean. The first
batch, for which nothing can have been done before, is left out of it for all arms (`first_batch_s`).

| arm | what it is |
|---|---|
| a0 | lockstep: the batch generates a turn together, then its environments step one after the other |
| a | lockstep, the environments in parallel |
| b | a coroutine for each episode, a barrier at the end of each batch |
| c | Driftline's collector, free-running over batches, at most the lead ahead; batches by the groups' numbers |
| d | c, and prefixes are reused |
| e | c, and the longest predicted go first |
| f | c, and as many in flight as the engine bears |
| g | c, and two surplus members a group |
| h | c, and batches of what is finished first: unfinished groups are carried over |
| i | all of them |

All arms have the same slots, tasks, seeds and requests, and deliver the same members: the script fails if not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.ladder_baselines import Barrier, Batches, Delivered, Interval, Lockstep
from benchmarks.ladder_bound import Bound, measure_bound
from benchmarks.ladder_free import Taker, collected
from benchmarks.ladder_table import plot, summarise, table
from benchmarks.local_run import base_model, host_engine
from benchmarks.state import State, add_state_option, open_state
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
from tests.support.seaweed import Seaweed, running_seaweed
from tests.support.toy_run import create_run

log = logging.getLogger("rollout-ladder")

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


def figures_of(outcome: Outcome, same: float) -> dict[str, Any]:
    """What is kept of one arm, once.

    `length_bias` is tokens of a delivered member over tokens of an episode that was begun, less one; `halfway`, of a
    member in the first half that was delivered over all members.
    """
    tokens = [one.tokens for one in outcome.members]
    half = tokens[: len(tokens) // 2]
    return {
        "wall_clock_s": outcome.wall_clock_s,
        "trainer_wait_s": statistics.fmean(outcome.waits_s[1:]),
        "first_batch_s": outcome.waits_s[0],
        "cache_hit_share": outcome.cache_hit_share,
        "length_bias": statistics.fmean(tokens) / outcome.generated_mean - 1.0,
        "length_bias_halfway": statistics.fmean(half) / statistics.fmean(tokens) - 1.0,
        "sampled_tokens": sum(tokens),
        "same_tokens_share": same,
    }


def same_share(members: Sequence[Delivered], reference: Mapping[tuple[int, int], Any]) -> float:
    """Share of the members whose tokens are those of the first arm; others differ by the sums of a batch's shape."""
    return sum(reference[one.group, one.member] == one.turns for one in members) / len(members)


async def carry_out(given: argparse.Namespace, state: State) -> None:
    """Play what is not done yet: a repeat of all arms after the other."""
    with tempfile.TemporaryDirectory(prefix="driftline-ladder-") as name, running_seaweed(Path(name)) as seaweed:
        host_engine(parameters("c", 0).engine, seaweed, Path(name))
        ladder = Ladder(seaweed, Path(name), given.lead_batches)
        try:
            await ladder.begin()
            for trace in given.traces:
                await play_trace(ladder, trace, given, state)
        finally:
            await ladder.close()


async def play_trace(ladder: Ladder, trace: str, given: argparse.Namespace, state: State) -> None:
    """All repeats of all arms over one trace, and the bound."""
    found = state.document["traces"].setdefault(trace, {"arms": {}, "balanced": {}, "pictures": {}})
    if "bound" not in found:
        await ladder.play("b", trace, 0.0)  # what is computed for the first time costs more
        found["bound"] = asdict(await ladder.bound(trace))
    reference: dict[tuple[int, int], Any] = {}
    for balanced in (False, True):
        for repeat in range(given.repeats):
            # To and fro, so that what drifts over a repeat does no arm a favour.
            for arm in given.arms if repeat % 2 == 0 else reversed(given.arms):
                if balanced and arm not in given.balanced:
                    continue
                kept = found["balanced" if balanced else "arms"].setdefault(arm, [])
                if len(kept) > repeat:
                    continue
                outcome = await ladder.play(arm, trace, train_seconds(found) if balanced else 0.0)
                reference = reference or {(one.group, one.member): one.turns for one in outcome.members}
                kept.append(figures_of(outcome, same_share(outcome.members, reference)))
                found["pictures"].setdefault(arm, outcome.requests)
                state.save()
                log.info("%s %s %d%s: %s", trace, arm, repeat, " balanced" if balanced else "", kept[-1])


def train_seconds(found: Mapping[str, Any]) -> float:
    """As long as arm (b) takes to collect a batch."""
    return statistics.median(one["wall_clock_s"] for one in found["arms"]["b"]) * GROUPS_A_BATCH / GROUPS


def main() -> None:
    """Play the arms that lack, print the table, draw the timelines."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", nargs="+", default=["published_tail", "pointer_chase"])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--balanced", nargs="*", default=["b", "c", "h", "i"], choices=ARMS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lead-batches", type=int, default=3, help="where the trainer takes no time")
    add_state_option(parser, "rollout-ladder.json")
    parser.add_argument("--plots", type=Path, default=None, help="directory for the timelines")
    add_json_option(parser)
    given = parser.parse_args()
    chosen = {"lead_batches": given.lead_batches, "slots": SLOTS}
    state = open_state(parser, given.state, chosen, "traces")
    asyncio.run(carry_out(given, state))
    traces = state.document["traces"]
    rows = {trace: summarise(found) for trace, found in traces.items()}
    for trace, arms in rows.items():
        print(f"\n{trace}\n\n{table(arms)}")
    write({**chosen, "traces": rows}, given.json)
    if given.plots is not None:
        for trace, found in traces.items():
            plot(found["pictures"], given.plots / f"rollout-ladder-{trace}.png")


if __name__ == "__main__":
    main()
