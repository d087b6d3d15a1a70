"""A bounded rollout that measures tasks: `python -m driftline.rollout.measure --run RUN --request REQUEST`.

For a run that is not under way. One engine takes up the newest policy version of the run, plays the groups of a
request for probe groups that nobody has played yet, and ends. A run that is under way has its cells play them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from functools import partial

from driftline.engine.protocol import Engine
from driftline.errors import ConfigurationError
from driftline.params import settings
from driftline.process import child_main, emit
from driftline.rollout.background import StoreThreads
from driftline.rollout.bootstrap import Surroundings, make_engine, pin, read_run
from driftline.rollout.evaluate import running, take_up
from driftline.rollout.families import PlayedFamilies
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.rollout.place import CellPlace
from driftline.rollout.prober import Prober, probe_lease_s
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult, tokens_of

LOG = logging.getLogger(__name__)

CELL = "measuring"
RETRY_S = 2.0


async def measure(found: Surroundings, engine: Engine, request: ProbeRequest) -> list[ProbeResult]:
    """Play what is left of a request, over an engine that has started; returns all of its results.

    Raises:
        ConfigurationError: The run has no policy yet.
    """
    run_store, parameters = found.run_store, found.parameters
    head, _ = await asyncio.to_thread(run_store.read_head)
    if head.version is None:
        raise ConfigurationError(f"run {run_store.run!r} has no policy yet: name another run, or none")
    guard, threads = EnvironmentGuard(), StoreThreads()
    families = PlayedFamilies(parameters, found.family, engine, found.renderer, guard, BusyMeter())
    prober = Prober(
        run_store.store,
        run_store.run,
        CellPlace(CELL, 0, 1),
        families.resources,
        threads,
        episodes=parameters.rollout.episodes_in_flight,
        lease_s=probe_lease_s(parameters),
    )
    try:
        with guard.installed():
            async with families:
                await take_up(engine, run_store, head.version)
                while await prober.serve(request):  # noqa: ASYNC110 (the store has no event)
                    await asyncio.sleep(RETRY_S)
    finally:
        threads.close()
    return await asyncio.to_thread(ProbeBook(run_store.store, run_store.run).results, request)


async def run_measuring(run: str, request_id: str) -> None:
    """Measure what a request asks for, in a process of its own."""
    found = await asyncio.to_thread(read_run, run, settings())
    pin(found.parameters.engine.cpus)
    request = await asyncio.to_thread(ProbeBook(found.run_store.store, run).read, request_id)
    async with running(make_engine(found.parameters.engine, found.model_dir, run)) as engine:
        emit({"event": "ready", "run": run})
        results = await measure(found, engine, request)
    emit({"event": "result", "tasks": len(results), "tokens": tokens_of(results)})


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(prog="python -m driftline.rollout.measure", description="Measure tasks.")
    parser.add_argument("--run", required=True, help="name of the run whose policy plays")
    parser.add_argument("--request", required=True, help="id of a request for probe groups")
    arguments = parser.parse_args()
    child_main(partial(run_measuring, arguments.run, arguments.request))


if __name__ == "__main__":
    main()
