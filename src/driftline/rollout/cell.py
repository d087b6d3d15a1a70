"""One rollout cell: `python -m driftline.rollout.cell --run RUN --cell CELL`.

Starts the engine, follows the run's policy, and collects trajectories until HEAD says that the run is over. A cell
is disposable: another one takes over what it leaves unfinished.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from driftline.engine.protocol import Engine
from driftline.engine.tokens import Renderer
from driftline.environment import TaskFamily, level_of
from driftline.errors import NoProgress
from driftline.params import RunParameters, settings
from driftline.process import child_main, emit, exit_codes
from driftline.rollout.background import StoreThreads
from driftline.rollout.bootstrap import make_engine, pin, read_run
from driftline.rollout.collector import Collector
from driftline.rollout.episode import EpisodeResources
from driftline.rollout.fairness import settled_heap
from driftline.rollout.families import PlayedFamilies
from driftline.rollout.groups import TaskSource
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter, WaitingMeter
from driftline.rollout.place import CellPlace, place_of
from driftline.rollout.prober import Prober, probe_lease_s
from driftline.rollout.tally import TokenTally
from driftline.rollout.telemetry import Counters, Telemetry
from driftline.rollout.watchdog import Watchdog
from driftline.store.run_store import RunStore
from driftline.tracking.sink import Sink, open_sink

LOG = logging.getLogger(__name__)

CLOSE_DEADLINE_S = 20.0


async def collect(
    run_store: RunStore,
    parameters: RunParameters,
    *,
    cell: str,
    engine: Engine,
    renderer: Renderer,
    family: TaskFamily,
    sink: Sink,
    on_progress: Callable[[Mapping[str, Any]], None] = emit,
    on_deaf: Callable[[NoProgress], None] | None = None,
) -> Counters:
    """Be the cell `cell` of a run, over an engine that has started, until the run is over.

    Args:
        run_store: The run.
        parameters: Its parameters.
        cell: The cell's name.
        engine: Generates; it has started.
        renderer: Of the run's model.
        family: Of the run's environments.
        sink: Where metrics go.
        on_progress: Called with events for the supervisor.
        on_deaf: Called in another thread, to end the process, if nothing progresses and the event loop is blocked.

    Returns:
        What it did. Raises what `Collector.collect` raises, and `NoProgress`.
    """
    threads = StoreThreads()
    busy, waiting = BusyMeter(), WaitingMeter()
    tally = _tally(run_store, cell, engine, waiting)
    telemetry = Telemetry(
        run_store=run_store,
        cell=cell,
        tally=tally,
        waiting=waiting,
        engine=engine,
        sink=sink,
        tracking=parameters.tracking,
        busy=busy,
        threads=threads,
        on_progress=on_progress,
    )
    guard = EnvironmentGuard()
    families = PlayedFamilies(parameters, family, engine, renderer, guard, busy)
    tasks = TaskSource(
        run_store.store,
        parameters.environment.task_set,
        parameters.seed,
        threads,
        partial(level_of, family),
    )
    place = place_of(cell, parameters.rollout.cells)
    collector = Collector(
        run_store=run_store,
        place=place,
        parameters=parameters,
        resources=families.resources,
        tasks=tasks,
        telemetry=telemetry,
        tally=tally,
        threads=threads,
        prober=_prober(run_store, parameters, place, families.resources, threads, tally),
    )
    telemetry.pool_figures = lambda: families.figures
    watchdog = Watchdog(
        cell, parameters.limits.watchdog_s, works=telemetry.works, progress=telemetry.progress, on_deaf=on_deaf
    )
    try:
        with settled_heap():
            async with families, telemetry.lag.measured(watchdog.beat):
                await watchdog.watch(collector.collect())
    finally:
        threads.close()
        await tasks.close()
    return telemetry.counters


def _tally(run_store: RunStore, cell: str, engine: Engine, waiting: WaitingMeter) -> TokenTally:
    """The account of a new incarnation of the cell."""
    return TokenTally(
        cell,
        uuid.uuid4().hex[:8],
        engine,
        requests=lambda: run_store.store.requests.total(),
        claim_wait_s=lambda: waiting.seconds["claim"],
    )


def _prober(
    run_store: RunStore,
    parameters: RunParameters,
    place: CellPlace,
    resources: EpisodeResources,
    threads: StoreThreads,
    tally: TokenTally,
) -> Prober | None:
    """What plays probe groups beside the run's own; None where the parameters allow it no episode."""
    episodes = parameters.rollout.probe_episodes
    if not episodes:
        return None
    return Prober(
        run_store.store,
        run_store.run,
        place,
        resources,
        threads,
        episodes=episodes,
        lease_s=probe_lease_s(parameters),
        on_begin=tally.begin,
        on_end=tally.probe,
    )


async def run_cell(run: str, cell: str) -> None:
    """Be a cell of a run, from its start to its end, in a process of its own."""
    found = await asyncio.to_thread(read_run, run, settings())
    parameters = found.parameters
    pin(parameters.engine.cpus)
    spool = settings().work_dir / "spool" / f"{run}-{cell}.jsonl"
    engine = make_engine(parameters.engine, found.model_dir, run)
    sink = open_sink(settings().mlflow_uri, found.description.mlflow_run, spool=spool)
    try:
        await engine.start()
        emit({"event": "ready", "run": run, "cell": cell})
        counters = await collect(
            found.run_store,
            parameters,
            cell=cell,
            engine=engine,
            renderer=found.renderer,
            family=found.family,
            sink=sink,
            on_deaf=_end_process,
        )
        emit(
            {
                "event": "result",
                "cell": cell,
                "episodes": counters.episodes,
                "failed": counters.failed,
                "cancelled": counters.cancelled,
                "groups": counters.groups,
            }
        )
    finally:
        try:
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await engine.close()
        except TimeoutError:
            LOG.error("the engine did not close within %g s", CLOSE_DEADLINE_S)
        await asyncio.to_thread(sink.close)


def _end_process(error: NoProgress) -> None:
    """End a process whose event loop is blocked: no `finally` can run. Its supervisor ends what it has started."""
    emit({"event": "error", "type": type(error).__name__, "message": str(error)})
    logging.shutdown()
    os._exit(exit_codes.TRANSIENT)


def main() -> None:
    """Read the command line, and be the cell."""
    parser = argparse.ArgumentParser(prog="python -m driftline.rollout.cell", description="Be a rollout cell.")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--cell", required=True, help="name of the cell, such as c0")
    arguments = parser.parse_args()
    child_main(partial(run_cell, arguments.run, arguments.cell))


if __name__ == "__main__":
    main()
