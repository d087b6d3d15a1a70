"""How quickly the offset API answers while a long run goes on: p50 and p99 of an open-loop load.

    python -m benchmarks.offset_api --json offset_api.json

A real SeaweedFS holds a run of `--steps` steps, each of 16 groups of 8 members; the service is a process of its own.
Requests are sent when they are due, whether or not earlier ones are answered, and a latency counts from the moment
its request was due: a service that stalls cannot hide it by being asked less. Meanwhile the run goes on: a step is
committed every two seconds, and two engines report every second.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil

from benchmarks.figures import add_json_option, tell
from driftline.store.client import S3Store
from driftline.store.run_store import RunStore
from tests.support import offset_runs
from tests.support.offset_service import serving
from tests.support.seaweed import BUCKET, Seaweed, running_seaweed

RUN = "long"
MIX = (
    ("offset", 0.40),
    ("divergence?by=lag", 0.12),
    ("divergence?by=version", 0.08),
    ("history", 0.12),
    ("ledger", 0.08),
    ("timeline", 0.05),
    ("trajectories", 0.10),
    ("runs", 0.03),
    ("metrics", 0.02),
)
"""What is asked for, and its share: what open pages and a scraper ask, and people who look at trajectories."""
CONTROL, CONTROL_SHARE = "healthz", 0.1
"""Asked besides: it does nothing, so that its latency is what machine and framework take."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request."""

    kind: str
    seconds: float
    """From when it was due."""
    status: int


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


@contextmanager
def going_on(seaweed: Seaweed, step: int) -> Iterator[None]:
    """The run goes on: steps and heartbeats, until the block ends."""
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    process = context.Process(target=_go_on, args=(seaweed.endpoint, step, ended), daemon=True)
    process.start()
    try:
        yield
    finally:
        ended.set()
        process.join()


def _go_on(endpoint: str, step: int, ended: Event) -> None:
    """In a process of its own: it must not hold up whoever measures."""
    store, committed = S3Store(BUCKET, endpoint=endpoint), step
    run_store = RunStore(store, RUN)
    for beat in range(100_000):
        if ended.wait(1.0):
            return
        if beat % 2:
            committed += 1
            offset_runs.commit(store, next(offset_runs.records(RUN, committed, first=committed)))
        for cell in offset_runs.CELLS:
            run_store.write_offset(offset_runs.report(RUN, cell, committed - beat % 2, time.time()))


async def load(address: str, *, rate: float, seconds: float, steps: int, seed: int) -> list[Answered]:
    """Send requests at a steady rate, open loop."""
    rng = random.Random(seed)
    kinds = rng.choices([kind for kind, _ in MIX], [share for _, share in MIX], k=round(rate * seconds))
    controls = round(CONTROL_SHARE * rate * seconds)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as session:
        begin = time.perf_counter() + 0.2

        async def ask(number: float, kind: str) -> Answered:
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            async with session.get(address + path(kind, steps, rng)) as answer:
                await answer.read()
                return Answered(kind, time.perf_counter() - due, answer.status)

        asked = [ask(number, kind) for number, kind in enumerate(kinds)]
        return await asyncio.gather(*asked, *(ask(number / CONTROL_SHARE, CONTROL) for number in range(controls)))


def path(kind: str, steps: int, rng: random.Random) -> str:
    """The address of one question."""
    if kind in ("runs", "metrics", CONTROL):
        return "/v1/runs" if kind == "runs" else f"/{kind}"
    if kind == "trajectories":
        group, member = rng.randrange(steps * offset_runs.GROUPS), rng.randrange(offset_runs.MEMBERS)
        return f"/v1/runs/{RUN}/trajectories/{group}/{member}"
    return f"/v1/runs/{RUN}/{kind}"


def wait_until_read(address: str, deadline_s: float = 300.0) -> float:
    """Seconds from the first question about a run until it is answered; the service says how far it is meanwhile."""
    began = time.monotonic()
    while httpx.get(f"{address}/v1/runs/{RUN}/offset", timeout=30).status_code != 200:
        if time.monotonic() - began > deadline_s:
            raise TimeoutError("the run was not read in time")
        time.sleep(0.1)
    return time.monotonic() - began


def service_process(address: str) -> psutil.Process:
    """The process that listens there."""
    port = int(address.rpartition(":")[2])
    for child in psutil.Process().children(recursive=True):
        if any(one.laddr.port == port and one.status == psutil.CONN_LISTEN for one in child.net_connections("tcp")):
            return child
    raise RuntimeError("the service has no process")


def measure(
    seaweed: Seaweed, folder: Path, *, steps: int, rate: float, seconds: float, rounds: int = 1
) -> dict[str, Any]:
    """Write the run, start the service, load it; `rounds` times."""
    store = seaweed.store()
    offset_runs.write_run(store, RUN, steps)
    found: list[dict[str, Any]] = []
    with serving(seaweed.environment, folder) as address:
        first_read_s = wait_until_read(address)
        process = service_process(address)
        with going_on(seaweed, steps):
            for number in range(rounds):
                cpu = sum(process.cpu_times()[:2])
                answers = asyncio.run(load(address, rate=rate, seconds=seconds, steps=steps, seed=number))
                share = (sum(process.cpu_times()[:2]) - cpu) / seconds
                found.append(figures(answers) | {"cpu_share": share, "rss_mib": process.memory_info().rss / 2**20})
    return {
        "steps": steps,
        "members_per_step": offset_runs.GROUPS * offset_runs.MEMBERS,
        "requests_per_second": rate,
        "seconds": seconds,
        "first_read_s": first_read_s,
        "rounds": found,
        "p50_ms": min(one["p50_ms"] for one in found),
        "p99_ms": min(one["p99_ms"] for one in found),
        "control_p99_ms": min(one["by_kind"][CONTROL]["p99_ms"] for one in found),
    }


def figures(answers: Sequence[Answered]) -> dict[str, Any]:
    """Quantiles in milliseconds, altogether and of each kind; and what was no success."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        by_kind[answer.kind].append(1000 * answer.seconds)
    latencies = [1000 * answer.seconds for answer in answers if answer.kind != CONTROL]
    return {
        "requests": len(latencies),
        "failures": sum(answer.status != 200 for answer in answers),
        "p50_ms": quantile(latencies, 0.5),
        "p99_ms": quantile(latencies, 0.99),
        "max_ms": max(latencies),
        "by_kind": {
            kind: {"requests": len(some), "p50_ms": quantile(some, 0.5), "p99_ms": quantile(some, 0.99)}
            for kind, some in sorted(by_kind.items())
        },
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_seaweed(Path(folder)) as seaweed:
        found = measure(
            seaweed,
            Path(folder),
            steps=options.steps,
            rate=options.rate,
            seconds=options.seconds,
            rounds=options.rounds,
        )
    tell(found, options.json)


if __name__ == "__main__":
    main()
