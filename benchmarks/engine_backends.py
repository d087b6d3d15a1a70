"""The engine in the cell's process against the engine as a server beside it: the same requests on both, in turn.

    python -m benchmarks.engine_backends [--repeats 5] [--json figures.json]

`short` is every request of the trace `published_tail` without its tools, all episodes at once: about 30 tokens of
context and 5 sampled ones each. `long` is 256 requests of 48 sampled tokens. Both engines are real vLLM ones over the
same model with the same parameters, and both are up all the time; the one that is not asked sleeps. They and this
process share `--cpus`. Seconds compare within one repeat alone, so the table has ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, log_progress, tell
from benchmarks.ladder_bound import TOKENS, long_requests, without_tools
from benchmarks.local_run import base_model, host_engine
from driftline.engine.making import make_engines
from driftline.engine.protocol import Engine
from driftline.engine.tokens import open_renderer
from driftline.environment import Task
from driftline.params import RunParameters, settings
from driftline.rollout.episode import EpisodeLimits, EpisodeResources
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.store import files
from environments.trace_replay import PUBLISHED_TAIL
from tests.support.seaweed import running_seaweed

log = logging.getLogger("engine-backends")

BACKENDS = ("vllm", "vllm_server")
GROUPS = 64
EPISODES = 512
LONG_REQUESTS = 256


def parameters(backend: str) -> RunParameters:
    """The run that either engine is for."""
    return RunParameters.model_validate(
        {
            "model": {"warm_start_steps": 0},
            "environment": {"id": "trace_replay/v1", "max_turns": 20},
            "engine": {"backend": backend, "max_num_seqs": EPISODES},
        }
    )


class Comparison:
    """Asks both engines."""

    def __init__(self, engines: Mapping[str, Engine], model_dir: Path) -> None:
        self._engines = engines
        self._renderer = open_renderer(model_dir, "plain", stop=PUBLISHED_TAIL.stop)
        self._tasks: Sequence[Task] = PUBLISHED_TAIL.generate(0, GROUPS)

    async def ask(self, backend: str, number: int) -> dict[str, float]:
        """Seconds of both loads on one engine; `number` sets the seeds of the long one."""
        engine, params = self._engines[backend], parameters(backend)
        resources = EpisodeResources(
            PUBLISHED_TAIL, engine, self._renderer, EpisodeLimits.of(params), EnvironmentGuard(), BusyMeter()
        )
        short_s = await without_tools(resources, self._tasks, EPISODES)
        tokens_a_second = await long_requests(engine, LONG_REQUESTS, number)
        return {"short_s": short_s, "long_s": LONG_REQUESTS * TOKENS / tokens_a_second}


async def compare(repeats: int, cpus: Sequence[int]) -> dict[str, list[dict[str, float]]]:
    """Both loads on both engines, `repeats` times after one that does not count."""
    kept: dict[str, list[dict[str, float]]] = {backend: [] for backend in BACKENDS}
    with tempfile.TemporaryDirectory(prefix="driftline-backends-") as name, running_seaweed(Path(name)) as seaweed:
        params = parameters(BACKENDS[0])
        host_engine(params.engine, seaweed, Path(name))
        store = seaweed.store(180.0)
        os.sched_setaffinity(0, cpus)
        model = await base_model(params, store, Path(name))
        model_dir = await asyncio.to_thread(files.local_model, store, model, settings().work_dir)
        engines = {backend: make_engines(parameters(backend).engine, model_dir, "backends") for backend in BACKENDS}
        try:
            for engine in engines.values():
                await engine.start()
            comparison = Comparison(engines, model_dir)
            for repeat in range(-1, repeats):
                for backend in BACKENDS:
                    found = await comparison.ask(backend, repeat + 1)
                    log.info("%s %d: %s", backend, repeat, found)
                    kept[backend] += [found] if repeat >= 0 else []
        finally:
            for engine in engines.values():
                await engine.close()
    return kept


def ratios(kept: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Seconds of the server over those of the engine in process, for each load: the median, and each repeat."""
    inside, server = (kept[backend] for backend in BACKENDS)
    figures: dict[str, Any] = {}
    for load in ("short_s", "long_s"):
        each = [one[load] / other[load] for one, other in zip(server, inside, strict=True)]
        figures[load.removesuffix("_s")] = {"server_to_in_process": statistics.median(each), "each": each}
    return figures


def main() -> None:
    """Compare, and print the figures."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpus", type=int, nargs="+", default=[0, 1], help="processors of all processes")
    add_json_option(parser)
    given = parser.parse_args()
    kept = asyncio.run(compare(given.repeats, given.cpus))
    tell(ratios(kept) | {"seconds": kept}, given.json)


if __name__ == "__main__":
    main()
