"""Follows HEAD, and keeps the engine's weights at it.

    poll HEAD -> tell the collector -> engine.update, in flight -> acknowledge -> tell the collector

A version may be skipped: only the newest is taken up. What the engine has acknowledged is what admission goes by
(`acknowledged`), never what HEAD merely says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from driftline.engine.protocol import Engine, UpdateReport
from driftline.errors import DeadlineExceeded, ObjectMissing, ProbeNotReproduced, WeightUpdateFailed
from driftline.records import Head, PolicyVersion
from driftline.rollout import scheduler
from driftline.rollout.background import StoreThreads
from driftline.store.pins import pinned
from driftline.store.run_store import RunStore

LOG = logging.getLogger(__name__)

POLL_S = 0.12
POLL_IDLE_S = 0.04
"""While the cell has nothing to do, and so waits for HEAD."""
POLL_AT_START_S = 0.25


@dataclass(frozen=True, slots=True)
class Applied:
    """An update that the engine has acknowledged."""

    report: UpdateReport
    seen_unix: float
    """When HEAD was seen to name it."""
    applied_unix: float
    """When the engine acknowledged it."""


class HeadFollower:
    """Knows the newest HEAD, and the one whose policy version the engine holds."""

    def __init__(
        self,
        run_store: RunStore,
        engine: Engine,
        threads: StoreThreads,
        *,
        reader: str,
        update_deadline_s: float,
        on_head: Callable[[], None],
        on_applied: Callable[[Applied], None],
        on_refused: Callable[[int, float], None],
        is_idle: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run_store = run_store
        self._engine = engine
        self._threads = threads
        self._reader = reader
        self._update_deadline_s = update_deadline_s
        self._on_head = on_head
        self._on_applied = on_applied
        self._on_refused = on_refused
        self._is_idle = is_idle
        self._clock = clock
        self._newest: Head | None = None
        self._etag = ""
        self.acknowledged: Head | None = None
        self.version: PolicyVersion | None = None
        """What the engine has acknowledged."""
        self.applied_unix = 0.0

    @property
    def newest(self) -> Head:
        """HEAD as it was last read."""
        assert self._newest is not None, "begin was not awaited"
        return self._newest

    @property
    def _waits_for_a_policy(self) -> bool:
        return self.newest.version is None and self.newest.state == "running"

    async def begin(self, deadline_s: float) -> None:
        """Wait until HEAD names a policy version, and have the engine take it up.

        Raises:
            DeadlineExceeded: The trainer published none in time.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while not await self._poll() or self._waits_for_a_policy:  # noqa: ASYNC110 (the store has no event)
                    await asyncio.sleep(POLL_AT_START_S)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no policy was published within {deadline_s:g} s: see the trainer's log, or raise "
                "limits.batch_deadline_s"
            ) from None
        await self._catch_up_late()

    async def follow(self) -> None:
        """Poll HEAD and take up its versions until HEAD says that the run is over."""
        while self.newest.state == "running":
            if await self._poll():
                await self._catch_up()
            await asyncio.sleep(POLL_IDLE_S if self._is_idle() else POLL_S)

    async def _catch_up_late(self) -> None:
        """Catch up for the first time: HEAD may move far on meanwhile, and what is being read must stay."""
        if self.newest.version is None:
            return
        store, run, versions = self._run_store.store, self._run_store.run, [self.newest.version]
        with ExitStack() as reading:
            await self._threads.run(reading.enter_context, pinned(store, run, self._reader, versions=versions))
            try:
                await self._catch_up()
            finally:
                await self._threads.run(reading.close)

    async def _poll(self) -> bool:
        """Read HEAD if it has changed; returns whether it is known."""
        try:
            if self._newest is None:
                changed = await self._threads.run(self._run_store.read_head)
            else:
                changed = await self._threads.run(self._run_store.head_if_changed, self._etag)
        except ObjectMissing:
            if self._newest is not None:
                raise
            return False
        if changed is not None:
            self._newest, self._etag = changed
            self._on_head()
        return True

    async def _catch_up(self) -> None:
        """Have the engine take up HEAD's version, and acknowledge it."""
        wanted = self.newest.version
        if wanted is not None and wanted != self.version and self.newest.state == "running":
            await self._apply(wanted)
        held = self.version.number if self.version else None
        acknowledged = scheduler.acknowledged_head(self.acknowledged, self.newest, held)
        if acknowledged is not self.acknowledged:
            self.acknowledged = acknowledged
            self._on_head()

    async def _apply(self, wanted: PolicyVersion) -> None:
        seen_unix = self._clock()
        manifest = await self._threads.run(self._run_store.read_manifest, wanted)
        try:
            async with asyncio.timeout(self._update_deadline_s):
                report = await self._engine.update(manifest)
        except TimeoutError:
            raise WeightUpdateFailed(
                f"the engine did not take up version {wanted} within {self._update_deadline_s:g} s: raise "
                "engine.request_deadline_s"
            ) from None
        except ProbeNotReproduced as error:
            self._on_refused(wanted.number, error.difference_nats)
            raise
        self.version, self.applied_unix = wanted, self._clock()
        LOG.info("version %s after %.2f s (pause %.3f s)", wanted, self.applied_unix - seen_unix, report.pause_s)
        self._on_applied(Applied(report, seen_unix, self.applied_unix))
