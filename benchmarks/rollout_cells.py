"""Groups a second with one, two and four rollout cells, and what is left when one of them is killed.

    python -m benchmarks.rollout_cells --json cells.json

Each cell is a process of its own over the scripted engine, whose steps take a given time (`--step-ms`): so cells are
bound by their engines and not by this machine's processors, and what is measured is how they share the work through
the store. The store is a real SeaweedFS; the trainer is the real loop over a stand-in for the model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, tell
from driftline.engine.scripted import ScriptedEngine
from driftline.params import RunParameters, settings
from driftline.process import child_main, emit
from driftline.rollout.bootstrap import read_run
from driftline.rollout.cell import collect
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink
from driftline.training.loop import TrainingLoop
from tests.faults.verification import verify
from tests.support.environments import Dice
from tests.support.seaweed import Seaweed, running_seaweed
from tests.support.toy_run import create_run, upload_scripted_model
from tests.support.training import FakeGroup

GROUPS_A_STEP = 8
STEPS_A_CELL = 12
SKIPPED_STEPS = 3
"""First steps that do not count: the cells fill their engines in them."""
SEQUENCES = 16
TARGETS = {2: 1.8, 4: 3.4}


def parameters(cells: int) -> RunParameters:
    """Room for every cell to keep its engine full."""
    return RunParameters.model_validate(
        {
            "environment": {"id": "tests.support.environments:Dice", "task_set": "cells"},
            "rollout": {
                "groups_per_step": GROUPS_A_STEP, "group_size": 4, "cells": cells, "lease_s": 3,
                "episodes_in_flight": 2 * SEQUENCES,
            },
            "overlap": {"lead_groups": 12 * cells, "max_lag_versions": 32},
            "engine": {"backend": "scripted"},
            "training": {"steps": SKIPPED_STEPS + STEPS_A_CELL * cells},
            "tracking": {"traces_every_steps": 0},
        }
    )  # fmt: skip


async def be_cell(run: str, cell: str, step_s: float) -> None:
    """Be a cell whose engine takes `step_s` for a step."""
    found = await asyncio.to_thread(read_run, run, settings())
    engine = ScriptedEngine(step_s=step_s, max_num_seqs=SEQUENCES, pause_s=0.02)
    await engine.start()
    emit({"event": "ready"})
    try:
        await collect(
            found.run_store,
            found.parameters,
            cell=cell,
            engine=engine,
            renderer=found.renderer,
            family=found.family,
            sink=NullSink(),
        )
    finally:
        await engine.close()


@contextlib.contextmanager
def cells_of(seaweed: Seaweed, run: str, count: int, step_ms: float, work_dir: Path) -> Iterator[list[Any]]:
    """The cells' processes; all are ready to begin."""
    environment = {**os.environ, **seaweed.environment, "DRIFTLINE_WORK_DIR": str(work_dir)}
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(count):
            command = [sys.executable, "-m", "benchmarks.rollout_cells", "--run", run, "--cell", f"c{number}"]
            with (work_dir / f"{run}-c{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [*command, "--step-ms", str(step_ms)],
                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                    )
                )  # fmt: skip
        for process in started:
            assert process.stdout is not None
            if "ready" not in process.stdout.readline():
                raise SystemExit(f"a cell did not start: see {work_dir}")
            threading.Thread(target=process.stdout.read, daemon=True).start()
        yield started
        for process in started:
            process.wait(60)
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(seaweed: Seaweed, cells: int, step_ms: float, folder: Path, *, kill: bool = False) -> dict[str, Any]:
    """One run with some cells; with `kill`, one of them is killed when half of the steps are done."""
    run, params = f"cells-{cells}{'-killed' if kill else ''}", parameters(cells)
    store = seaweed.store()
    run_store = create_run(
        store, params, run=run, family=Dice(), model=upload_scripted_model(store, folder / f"model-{run}")
    )
    with cells_of(seaweed, run, cells, step_ms, folder) as processes:
        victim: Callable[[], None] = processes[-1].kill if kill else lambda: None
        train(run_store, params, folder / run, victim)
    records = RunStore(store, run).steps()
    counted = records[SKIPPED_STEPS:]
    seconds = counted[-1].times.committed - counted[0].times.committed
    found = verify(RunStore(store, run), {}, expected_steps=params.training.steps)
    return {
        "cells": cells,
        "groups_a_second": round(GROUPS_A_STEP * (len(counted) - 1) / seconds, 3),
        "groups": found.groups_trained,
        "groups_lost": found.groups_lost,
        "groups_twice": found.groups_twice + found.members_twice,
        "lag_max": max(use.lag_max for record in counted for use in record.groups),
    }


def train(run_store: RunStore, params: RunParameters, folder: Path, victim: Callable[[], None]) -> None:
    """Be the trainer of the run; `victim` is called when half of the steps are done."""

    def told(event: Any) -> None:
        if event.get("step") == params.training.steps // 2 and event["event"] == "progress":
            victim()

    group, lease = FakeGroup(), run_store.take_epoch()
    TrainingLoop(run_store, lease, params, group, NullSink(), scratch=folder / "scratch", emit=told).run()


def main() -> None:
    """Measure one, two and four cells, and a killed one; or be a cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--step-ms", type=float, default=200.0, help="milliseconds of an engine step")
    add_json_option(parser)
    parser.add_argument("--run", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--cell", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        child_main(partial(be_cell, given.run, given.cell, given.step_ms / 1000))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="driftline-cells-") as folder, running_seaweed(Path(folder)) as seaweed:
        rows = [measure(seaweed, cells, given.step_ms, Path(folder)) for cells in (1, 2, 4)]
        killed = measure(seaweed, 2, given.step_ms, Path(folder), kill=True)
    alone = rows[0]["groups_a_second"]
    figures = {
        "step_ms": given.step_ms,
        "cells": rows,
        "ratios": {row["cells"]: round(row["groups_a_second"] / alone, 2) for row in rows[1:]},
        "targets": TARGETS,
        "one_of_two_killed": killed,
        "seconds": round(time.monotonic() - began),
    }
    tell(figures, given.json)


if __name__ == "__main__":
    main()
