"""Child processes of flows: rollout cells, trainer ranks, and those that make one thing and end.

All are started through `driftline.process.supervise`, from the repository root: whatever ends the flow run ends them
and their process groups.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

from driftline.errors import ObjectMissing, ProcessFailed
from driftline.process import ProcessOutcome, supervise
from driftline.records import Head
from driftline.store.run_store import RunStore
from tasks.logs import announce, forward, run_logger
from tasks.restarts import Outcome, Restart, after_end, after_failure
from tasks.surroundings import pinned

STOP_DEADLINE_S = 5.0
"""Between SIGTERM and SIGKILL of a child. Its commits are atomic, so that killing it loses no more than a step."""


async def run_module(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    cpus: Sequence[int] = (),
) -> ProcessOutcome:
    """Run `python -m module arguments...` to its end, with its log and its warnings in the flow run's.

    Args:
        module: The child's main module.
        arguments: Its command line.
        env: What its environment holds beside this process's own.
        cpus: Processors it is pinned to; empty is all.

    Raises:
        ConfigurationError: The child says that a setting is impossible.
        ProcessFailed: It ended badly.
    """
    logger = run_logger()
    return await supervise(
        [*pinned(cpus), sys.executable, "-m", module, *arguments],
        env={**os.environ, **env},
        on_event=announce,
        on_log=lambda line: forward(logger, line),
        stop_deadline_s=STOP_DEADLINE_S,
    )


async def run_ranks(
    module: str, *arguments: str, ranks: int, env: Mapping[str, str], cpus: Sequence[int] = ()
) -> None:
    """Run the ranks of a process group on this machine; the first that fails ends all.

    One rank runs without a group. Otherwise each gets RANK, LOCAL_RANK, WORLD_SIZE and a rendezvous on the loopback.
    """
    if ranks == 1:
        await run_module(module, *arguments, env=env, cpus=cpus)
        return
    group = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [
        asyncio.create_task(
            run_module(
                module, *arguments, env={**env, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cpus=cpus
            )
        )
        for rank in range(ranks)
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def free_port() -> int:
    """A port of the loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run_until_over(
    start: Callable[[], Awaitable[object]], store: RunStore, *, name: str, limit: int, limit_field: str
) -> None:
    """Run a process of a run, and start it again when that may mend it, until the run is over.

    Args:
        start: Runs the process once, to its end.
        store: Where the run's head is: it says whether the run is over, and why.
        name: What the process is, for messages.
        limit: How often it may be started again.
        limit_field: The parameter that holds the limit.

    Raises:
        ConfigurationError: The process says that a setting is impossible.
        LimitExceeded: The restarts are used up, or the run's head says why it failed.
        ProcessFailed: It ended with an error that a restart does not mend, or the run was cancelled.
    """

    async def judge(failure: ProcessFailed | None, restarts: int) -> Outcome:
        head = await asyncio.to_thread(head_or_none, store)
        return after_end(failure, head, name=name, restarts=restarts, limit=limit, limit_field=limit_field)

    await _run_while(start, judge, limit)


async def run_again(start: Callable[[], Awaitable[object]], *, name: str, limit: int, limit_field: str) -> None:
    """Run a process to its end, and start it again when that may mend it.

    Raises:
        ConfigurationError: The process says that a setting is impossible.
        LimitExceeded: The restarts are used up.
        ProcessFailed: It ended with an error that a restart does not mend.
    """

    async def judge(failure: ProcessFailed | None, restarts: int) -> Outcome:
        return after_failure(failure, name=name, restarts=restarts, limit=limit, limit_field=limit_field)

    await _run_while(start, judge, limit)


Judge = Callable[[ProcessFailed | None, int], Awaitable[Outcome]]


async def _run_while(start: Callable[[], Awaitable[object]], judge: Judge, limit: int) -> None:
    """Run a process again for as long as the judge of its end says so."""
    logger = run_logger()
    restarts = 0
    while True:
        failure: ProcessFailed | None = None
        try:
            await start()
        except ProcessFailed as error:
            failure = error
        outcome = await judge(failure, restarts)
        if isinstance(outcome, Exception):
            raise outcome from failure
        if not isinstance(outcome, Restart):
            return
        what = str(failure).splitlines()[0]
        logger.warning("%s: starting it again in %.0f s (%d of %d)", what, outcome.delay_s, restarts + 1, limit)
        await asyncio.sleep(outcome.delay_s)
        restarts += 1


def head_or_none(store: RunStore) -> Head | None:
    """The run's head, None before the trainer has made it."""
    try:
        return store.read_head()[0]
    except ObjectMissing:
        return None
