"""What a cell does at regular intervals: renew its leases, watch its engine, report."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from driftline.engine.protocol import Engine
from driftline.errors import EngineDied, PreconditionFailed
from driftline.rollout.background import StoreThreads
from driftline.rollout.groups import OpenGroup
from driftline.store.run_store import RunStore

LOG = logging.getLogger(__name__)

PERIOD_S = 1.0


class Keeper:
    """Keeps a cell's claims, and fails if its engine has stalled."""

    def __init__(
        self,
        run_store: RunStore,
        engine: Engine,
        threads: StoreThreads,
        *,
        open_groups: Mapping[int, OpenGroup],
        lease_s: float,
        stall_s: float,
        on_lost: Callable[[OpenGroup], None],
        report: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            run_store: Where the claims are.
            engine: The engine to watch.
            threads: For calls of the store.
            open_groups: The claimed groups, as they stand.
            lease_s: Seconds for which a claim is taken; it is renewed after a third of them.
            stall_s: Seconds without a token after which an engine with requests counts as dead.
            on_lost: Called with a group that another cell has taken.
            report: Called once a period.
            monotonic: Clock, in seconds.
        """
        self._run_store = run_store
        self._engine = engine
        self._threads = threads
        self._open = open_groups
        self._lease_s, self._stall_s = lease_s, stall_s
        self._on_lost = on_lost
        self._report = report
        self._monotonic = monotonic
        self._tokens, self._tokens_since = engine.status().generated_tokens, monotonic()

    async def keep(self) -> None:
        """Do it for ever.

        Raises:
            EngineDied: The engine has requests, and has made no token for `stall_s`.
        """
        period_s = min(PERIOD_S, self._lease_s / 6, self._stall_s / 2)
        while True:
            await self.renew_due()
            self.check_engine()
            await self._report()
            await asyncio.sleep(period_s)

    async def renew_due(self) -> None:
        """Renew the leases of which a third is over."""
        before = self._monotonic() - self._lease_s / 3
        due = [group for group in self._open.values() if group.renewed_at <= before]
        await asyncio.gather(*(self._renew(group) for group in due))

    async def _renew(self, group: OpenGroup) -> None:
        asked_at = self._monotonic()
        try:
            claim = await self._threads.run(self._run_store.renew, group.claim, self._lease_s)
        except PreconditionFailed as error:
            if group.number in self._open:
                LOG.warning("%s", error)
                self._on_lost(group)
            return
        group.claim = replace(group.claim, expires_unix=claim.expires_unix)
        group.renewed_at = asked_at

    def check_engine(self) -> None:
        """Fail if the engine has stalled."""
        status, now = self._engine.status(), self._monotonic()
        if status.generated_tokens != self._tokens or not status.running + status.waiting:
            self._tokens, self._tokens_since = status.generated_tokens, now
        elif now - self._tokens_since > self._stall_s:
            raise EngineDied(
                f"the engine made no token for {self._stall_s:g} s with {status.running} requests running and "
                f"{status.waiting} waiting: raise engine.request_deadline_s if that is its pace"
            )
