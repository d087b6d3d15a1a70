"""What the store costs a step: requests over a long run, and seconds on the critical path of a step.

    python -m benchmarks.store_requests --json store.json

A real SeaweedFS, a real rollout cell in its own process with the scripted engine, and the trainer's real loop over a
stand-in for the model: nothing but the store and what drives it. Two runs: a long one of small batches, whose
requests a step must not grow with its length; a short one of 128 trajectories a step, whose store seconds count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, tell
from driftline.params import RunParameters
from driftline.records import StepRecord
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.sink import NullSink
from driftline.training.loop import TrainingLoop
from tests.support.environments import QuickDice
from tests.support.seaweed import Seaweed, running_seaweed
from tests.support.toy_run import create_run, upload_scripted_model
from tests.support.training import FakeGroup

PARTS = (
    metrics.STORE_SECONDS,
    metrics.STORE_READ_SECONDS,
    metrics.STORE_PUBLISH_SECONDS,
    metrics.STORE_COMMIT_SECONDS,
)
WARM_UP = 3
"""First steps of the short run that do not count: connections are made in them."""


def parameters(steps: int, groups: int, members: int) -> RunParameters:
    """A run of the scripted engine."""
    return RunParameters.model_validate(
        {
            "environment": {"id": "tests.support.environments:QuickDice", "task_set": "store-requests"},
            "rollout": {"groups_per_step": groups, "group_size": members, "episodes_in_flight": 256},
            "overlap": {"lead_groups": groups},
            "engine": {"backend": "scripted"},
            "training": {"steps": steps},
            "tracking": {"traces_every_steps": 0},
        }
    )


@contextlib.contextmanager
def cell(seaweed: Seaweed, run: str, work_dir: Path) -> Iterator[None]:
    """A rollout cell in a process of its own; it ends with the run."""
    command = [sys.executable, "-m", "driftline.rollout.cell", "--run", run, "--cell", "c0"]
    environment = {**os.environ, **seaweed.environment, "DRIFTLINE_WORK_DIR": str(work_dir)}
    with (work_dir / f"{run}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            yield
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def train(seaweed: Seaweed, run: str, params: RunParameters, folder: Path) -> list[StepRecord]:
    """Carry a run out; returns its records."""
    store = seaweed.store()
    model = upload_scripted_model(store, folder / f"model-{run}")
    run_store = create_run(store, params, run=run, family=QuickDice(), model=model)
    with cell(seaweed, run, folder):
        loop = TrainingLoop(
            run_store,
            run_store.take_epoch(),
            params,
            FakeGroup(),
            NullSink(),
            scratch=folder / f"scratch-{run}",
            emit=lambda event: None,
        )
        loop.run()
    return RunStore(store, run).steps()


def requests(records: Sequence[StepRecord]) -> dict[str, Any]:
    """Requests a step at the beginning and at the end of a run. The first step begins before the batch: left out."""
    counts = [record.metrics[metrics.STORE_REQUESTS] for record in records[1:]]
    tenth = max(1, len(counts) // 10)
    first, last = statistics.mean(counts[:tenth]), statistics.mean(counts[-tenth:])
    seconds = records[-1].times.committed - records[0].times.committed
    return {
        "steps": len(records),
        "requests_a_step": round(statistics.mean(counts), 2),
        "first_tenth": round(first, 2),
        "last_tenth": round(last, 2),
        "growth": round(last / first, 3),
        "seconds_a_step": round(seconds / (len(records) - 1), 4),
    }


def critical_path(records: Sequence[StepRecord], trajectories: int) -> dict[str, Any]:
    """Store seconds on the critical path of a step: median, 95th percentile and maximum of each part."""
    counted = records[WARM_UP:]
    found: dict[str, Any] = {"steps": len(counted), "trajectories": trajectories}
    for name in PARTS:
        values = sorted(record.metrics[name] for record in counted)
        found[name] = {
            "p50": round(statistics.median(values), 4),
            "p95": round(values[int(0.95 * (len(values) - 1))], 4),
            "max": round(values[-1], 4),
        }
    return found


def main() -> None:
    """Carry out both runs, print the figures, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000, help="of the long run")
    parser.add_argument("--batch-steps", type=int, default=40, help="of the run with 128 trajectories a step")
    add_json_option(parser)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="driftline-store-") as folder, running_seaweed(Path(folder)) as seaweed:
        short = train(seaweed, "batches", parameters(given.batch_steps, 16, 8), Path(folder))
        long = train(seaweed, "long", parameters(given.steps, 2, 2), Path(folder))
    figures = {
        "critical_path": critical_path(short, 128),
        "requests_of_128": requests(short),
        "requests": requests(long),
        "seconds": round(time.monotonic() - began),
    }
    tell(figures, given.json)


if __name__ == "__main__":
    main()
