"""Blocking calls beside the event loop, and the orderly end of tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

LOG = logging.getLogger(__name__)

STORE_THREADS = 8
CANCEL_DEADLINE_S = 6.0
"""Longer than an environment may take to clean up."""

T = TypeVar("T")


class StoreThreads:
    """Carries out calls of the store, which block. A call whose awaiter is cancelled still ends by itself."""

    def __init__(self, workers: int = STORE_THREADS) -> None:
        self._pool = ThreadPoolExecutor(workers, "store")

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return `call(*arguments)`, from a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    def close(self) -> None:
        """Take no more calls; those under way end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]], *, deadline_s: float = CANCEL_DEADLINE_S) -> None:
    """Cancel tasks and wait until they are done; those that do not listen are cancelled a second time."""
    pending = {task for task in tasks if not task.done()}
    for _ in range(2):
        for task in pending:
            task.cancel()
        if pending:
            done, pending = await asyncio.wait(pending, timeout=deadline_s)
            _retrieve(done)
    if pending:
        LOG.error("%d tasks do not end: %s", len(pending), ", ".join(task.get_name() for task in pending))


def _retrieve(done: Iterable[asyncio.Task[Any]]) -> None:
    """Look at the results, so that an error in the wake of another is logged and not reported as unhandled."""
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.debug("%s ended with %r", task.get_name(), error)
