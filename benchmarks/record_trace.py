"""Record a trace of `pointer_chase/v1` from a real run: vLLM, DeepSpeed and SeaweedFS, `--steps` steps of 8 groups.

    python -m benchmarks.record_trace --out trace.jsonl [--steps 8] [--seed 0] [--json figures.json]

The policy is the warm-started one and what the steps make of it, so that episodes have the lengths of training, its
failures and its guesses included. On the same engine the first groups are then replayed, and their tokens counted:
`replayed_as_recorded` is the share of episodes in which prompt, turns and observations have their recorded lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, tell
from benchmarks.local_run import begin, host_engine, play
from driftline import traces
from driftline.engine.protocol import Engine
from driftline.params import RunParameters, settings
from driftline.process import supervise
from driftline.rollout.bootstrap import Surroundings, make_engine, read_run
from driftline.rollout.episode import EpisodeLimits, EpisodeResources
from driftline.rollout.evaluate import evaluate_version
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.store.trace_export import Export, export
from driftline.traces import EpisodeShape, groups_of, shape_of
from driftline.training.environment_variables import training_environment
from environments.trace_replay import TraceReplay
from environments.trace_replay.family import tasks_of
from tests.support.seaweed import running_seaweed

RUN = "pointer-chase"
GROUPS_A_STEP, GROUP_SIZE = 8, 8
DEADLINE_S = 540.0


def parameters(steps: int, seed: int) -> RunParameters:
    """A run as short as it may be, a batch ahead."""
    return RunParameters.model_validate(
        {
            "seed": seed,
            "model": {"warm_start_steps": 250},
            "environment": {"train_tasks": 512, "held_out_tasks": 64},
            "rollout": {"groups_per_step": GROUPS_A_STEP, "group_size": GROUP_SIZE, "episodes_in_flight": 128},
            "overlap": {"lead_groups": GROUPS_A_STEP},
            "engine": {"cpus": (0,)},
            "training": {"steps": steps, "cpus": (1,)},
            "tracking": {"traces_every_steps": 0},
        }
    )


async def train(params: RunParameters) -> None:
    """The trainer, in its own process."""
    command = [sys.executable, "-m", "driftline.training.entry", "--run", RUN]
    await supervise(command, env={**os.environ, **training_environment(params, os.environ)})


async def replayed_as_recorded(made: Export, found: Surroundings, engine: Engine) -> float:
    """Replay the first groups; the share of their episodes that have the recorded tokens."""
    limits = EpisodeLimits.of(found.parameters)
    resources = EpisodeResources(TraceReplay(), engine, found.renderer, limits, EnvironmentGuard(), BusyMeter())
    groups = groups_of(made.trace)[:GROUPS_A_STEP]
    tasks = tasks_of([shape for members in groups for shape in members])
    played = await evaluate_version(
        resources, RUN, tasks, task_set="replay", episodes_per_task=GROUP_SIZE, slots=len(tasks) * GROUP_SIZE
    )
    again = {(t.group, t.member): tokens(shape_of(t, "replay")) for t in played}
    recorded = {(n, shape.member): tokens(shape) for n, members in enumerate(groups) for shape in members}
    return sum(again[place] == counts for place, counts in recorded.items()) / len(recorded)


def tokens(shape: EpisodeShape) -> tuple[object, ...]:
    """All counts of an episode."""
    return shape.prompt_tokens, shape.sampled_tokens, shape.observation_tokens


async def record(params: RunParameters, folder: Path) -> tuple[Export, float]:
    """Run; what all steps trained on, and the share that replays exactly."""
    with running_seaweed(folder) as seaweed:
        host_engine(params.engine, seaweed, folder)
        await begin(params, RUN, seaweed.store(60.0), folder)
        found = await asyncio.to_thread(read_run, RUN, settings())
        engine = make_engine(params.engine, found.model_dir, RUN)
        try:
            await engine.start()
            async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
                group.create_task(train(params))
                group.create_task(play(found, engine))
            made = await asyncio.to_thread(export, found.run_store, (1, params.training.steps))
            return made, await replayed_as_recorded(made, found, engine)
        finally:
            await engine.close()


def figures(made: Export) -> dict[str, Any]:
    """What is in a trace."""
    episodes = len(made.trace)
    return {
        "episodes": episodes,
        "left_out": dict(made.left_out),
        "turns_mean": sum(shape.turns for shape in made.trace) / episodes,
        "turns_most": max(shape.turns for shape in made.trace),
        "sampled_tokens": sum(sum(shape.sampled_tokens) for shape in made.trace),
        "environment_seconds": sum(shape.environment_seconds for shape in made.trace),
        "reward_mean": sum(shape.reward or 0.0 for shape in made.trace) / episodes,
    }


def main() -> None:
    """Read the command line, and record."""
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new file")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    add_json_option(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftline-record-") as name:
        made, share = asyncio.run(record(parameters(given.steps, given.seed), Path(name)))
    sha256 = traces.write(given.out, made.trace)
    tell({"sha256": sha256, "replayed_as_recorded": share} | figures(made), given.json)


if __name__ == "__main__":
    main()
