"""Record a trace of `pointer_chase/v1` from a real run: vLLM, DeepSpeed and SeaweedFS, `--steps` steps of 8 groups.

    python -m benchmarks.record_trace --out trace.jsonl [--steps 8] [--seed 0] [--json figures.json]

The policy is the warm-started one and what the steps make of it, so that episodes have the lengths of training, its
failures and its guesses included.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, tell
from benchmarks.staleness_study import PROCESSORS, Choice, Study
from driftline import traces
from driftline.engine.environment_variables import engine_environment
from driftline.params import RunParameters, settings
from driftline.rollout.bootstrap import pin, read_run
from driftline.rollout.cell import collect
from driftline.store.run_store import RunStore
from driftline.store.trace_export import Export, export
from driftline.tracking.sink import NullSink
from tests.support.seaweed import running_seaweed

RUN = "pointer-chase"
GROUPS_A_STEP, GROUP_SIZE = 8, 8
DEADLINE_S = 540.0


def parameters(steps: int, seed: int) -> RunParameters:
    """A run as short as it may be, a batch ahead."""
    return RunParameters.model_validate(
        {
            "seed": seed,
            "rollout": {"groups_per_step": GROUPS_A_STEP, "group_size": GROUP_SIZE, "episodes_in_flight": 128},
            "overlap": {"lead_groups": GROUPS_A_STEP},
            "engine": {"cpus": PROCESSORS[:1]},
            "training": {"steps": steps, "cpus": PROCESSORS[1:]},
            "tracking": {"traces_every_steps": 0},
        }
    )


class Recorder(Study):
    """Runs once, by the means of the study, with its own parameters."""

    async def record(self, params: RunParameters) -> None:
        """Run to the end."""
        await self._create(params, RUN, await self._base_model(params))
        found = await asyncio.to_thread(read_run, RUN, self._settings)
        engine = await self._warm_engine(found)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            group.create_task(self._train(params, RUN))
            group.create_task(
                collect(
                    found.run_store,
                    params,
                    cell="c0",
                    engine=engine,
                    renderer=found.renderer,
                    family=found.family,
                    sink=NullSink(),
                    on_progress=lambda event: None,
                )
            )


async def record(steps: int, seed: int) -> Export:
    """The groups that all steps of a run trained on."""
    params = parameters(steps, seed)
    with tempfile.TemporaryDirectory(prefix="driftline-record-") as name, running_seaweed(Path(name)) as seaweed:
        os.environ.update({**seaweed.environment, "DRIFTLINE_WORK_DIR": str(Path(name) / "work")})
        os.environ.update(engine_environment(params.engine, os.environ))
        settings.cache_clear()
        pin(PROCESSORS[:1])
        recorder = Recorder(seaweed, Path(name), Choice(3e-4, 0.3, 0.05, 0.02))
        try:
            await recorder.record(params)
        finally:
            await recorder.close()
        return export(RunStore(seaweed.store(60.0), RUN), (1, steps))


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
    made = asyncio.run(record(given.steps, given.seed))
    tell({"sha256": traces.write(given.out, made.trace)} | figures(made), given.json)


if __name__ == "__main__":
    main()
