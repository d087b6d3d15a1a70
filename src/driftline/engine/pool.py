"""Several engines behind the protocol of one.

    generate ─▶ `routing.route` ─▶ engine ─▶ Generation
                                     └─ died ─▶ once more, on another one

| what happens | the pool |
|---|---|
| an update | goes to all engines at once; acknowledged when every engine that serves holds the version |
| some engines refuse a version that others took | ends them, as if they had died |
| all refuse it | raises; those that live serve the old version on |
| an engine dies, or makes no token for `stall_s` | fails its requests over to the others, closes and replaces it |
| too many deaths (`restarts`) | goes on with the engines that are left |
| the last one is gone, none to come | every call raises `EngineDied` |

Together rather than one after the other: a swap takes a twentieth of a second, and requests stand still for it no
longer if all engines swap at once; but one after the other, the version would be acknowledged so many times later,
and with it every group that may only start then (all of them, at a lead of 0).

Counts stay true over deaths: engines that are gone are asked on for what they had counted. A request that is done
again is sampled anew from its prompt, which holds every token that was ever returned; what the dead engine had
sampled for it is among that engine's discarded tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from driftline.engine.protocol import Engine, EngineStatus, Generation, GenerationRequest, UpdateReport
from driftline.engine.routing import EngineView, Holders, RoutingBounds, route, stalled_since
from driftline.errors import DeadlineExceeded, DriftlineError, EngineDied, WeightUpdateFailed
from driftline.records import PolicyVersion, WeightsManifest

LOG = logging.getLogger(__name__)

RESTARTS = 3
TRIES = 2
WATCH_SHARE = 0.1
"""Engines are looked at ten times in `stall_s`."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Replica:
    """One engine from its making to its end; another one takes its index then."""

    index: int
    engine: Engine
    serving: bool = False
    version: PolicyVersion | None = None
    load: int = 0
    updating: bool = False
    progress: tuple[int, float] = (0, 0.0)


class EnginePool:
    """Implements `Engine` over engines that `make` makes; each serves the same policy."""

    def __init__(
        self,
        make: Callable[[int], Engine],
        replicas: int,
        *,
        bounds: RoutingBounds,
        stall_s: float,
        restarts: int = RESTARTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe a pool; nothing starts yet.

        Args:
            make: Makes the engine of an index, not started.
            replicas: How many engines.
            bounds: See `RoutingBounds`.
            stall_s: Seconds after which an engine with requests that makes no token counts as dead, and the longest
                wait for an engine while all are being replaced.
            restarts: Engines that may be replaced in the pool's life.
            clock: The time, in seconds.
        """
        self._make = make
        self._replicas = [_Replica(index, make(index)) for index in range(replicas)]
        self._gone: list[Engine] = []
        self._bounds, self._stall_s, self._restarts_left = bounds, stall_s, restarts
        self._clock = clock
        self._holders = Holders()
        self._manifest: WeightsManifest | None = None
        """What was acknowledged last, by all."""
        self._newest: PolicyVersion | None = None
        """What was acknowledged last, by any."""
        self._updating: asyncio.Task[UpdateReport] | None = None
        self._graves: asyncio.Queue[_Replica] = asyncio.Queue()
        self._unburied = 0
        self._changed = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._last_death = "it was not started: await start() first"

    async def start(self) -> None:
        """Start every engine.

        Raises:
            EngineStartFailed: One of them did not start; the others are closed.
        """
        starts = [asyncio.create_task(replica.engine.start()) for replica in self._replicas]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            await self.close()
            raise
        for replica in self._replicas:
            self._begin_serving(replica)
        self._keepers = [
            asyncio.create_task(self._replace_for_ever(), name="engine-pool-replace"),
            asyncio.create_task(self._watch(), name="engine-pool-watch"),
        ]

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn on one of the engines, and once more on another one if that engine dies."""
        return await self._on_one(request.affinity, lambda engine: engine.generate(request))

    async def update(self, manifest: WeightsManifest) -> UpdateReport:
        """Take up a version in all engines; the report gives the longest of their times."""
        self._check_alive()
        if self._manifest is not None and manifest.version == self._manifest.version:
            return UpdateReport(manifest.version, False, 0.0, 0.0, 0.0, 0.0)
        if self._updating is not None and not self._updating.done():
            raise WeightUpdateFailed(f"version {manifest.version}: another update is under way: await it first")
        # The engines finish it even if the caller is cancelled, and so must the pool.
        self._updating = asyncio.create_task(self._update(manifest), name=f"pool-update-{manifest.version}")
        self._updating.add_done_callback(_retrieve)
        return await asyncio.shield(self._updating)

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of `token_ids[1:]`, by one of the engines."""
        return await self._on_one((), lambda engine: engine.score(token_ids))

    def status(self) -> EngineStatus:
        """Sums over the engines, those that are gone included; the version is the oldest that serves."""
        every = [replica.engine.status() for replica in self._replicas]
        counted = every + [engine.status() for engine in self._gone]
        serving = [replica.version for replica in self._replicas if replica.serving]
        oldest = min(serving, key=lambda version: -1 if version is None else version.number, default=self._newest)
        prompt_tokens = sum(status.prompt_tokens for status in counted)
        hits = sum(status.prefix_hit_share * status.prompt_tokens for status in counted)
        return EngineStatus(
            version=oldest,
            running=sum(status.running for status in every),
            waiting=sum(status.waiting for status in every),
            kv_cache_share=max(status.kv_cache_share for status in every),
            preemptions=sum(status.preemptions for status in counted),
            prefix_hit_share=hits / max(1, prompt_tokens),
            generated_tokens=sum(status.generated_tokens for status in counted),
            prompt_tokens=prompt_tokens,
            in_flight_tokens=sum(status.in_flight_tokens for status in counted),
            discarded_tokens=sum(status.discarded_tokens for status in counted),
            scored_tokens=sum(status.scored_tokens for status in counted),
            engines=len(serving),
        )

    async def close(self) -> None:
        """Close every engine; calls in flight fail with `EngineDied`."""
        self._last_death, self._restarts_left = "the pool was closed", 0
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)
        for replica in self._replicas:
            replica.serving = False
        self._unburied = 0
        self._tell_change()
        closed = await asyncio.gather(*(replica.engine.close() for replica in self._replicas), return_exceptions=True)
        if self._updating is not None:
            await asyncio.wait([self._updating])
        for error in closed:
            if isinstance(error, BaseException):
                raise error

    async def _on_one(self, affinity: Sequence[str], work: Callable[[Engine], Awaitable[T]]) -> T:
        for _ in range(TRIES):
            replica = await self._choose(affinity)
            replica.load += 1
            try:
                return await work(replica.engine)
            except EngineDied as error:
                self._bury(replica, str(error))
            finally:
                replica.load -= 1
        raise EngineDied(f"{TRIES} engines died under the same request; the last one: {self._last_death}")

    async def _choose(self, affinity: Sequence[str]) -> _Replica:
        """The engine for a request; waits while all are being replaced."""
        try:
            async with asyncio.timeout(self._stall_s):
                while True:
                    self._check_alive()
                    versions = {one.index: one.version for one in self._replicas if one.serving}
                    views = [self._view(replica) for replica in self._replicas]
                    index = route(views, self._newest, self._holders.find(affinity, versions), self._bounds)
                    if index is not None:
                        self._holders.note(affinity, index, versions)
                        return self._replicas[index]
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"no engine came back within {self._stall_s:g} s: raise engine.request_deadline_s, or see why they "
                f"died: {self._last_death}"
            ) from None

    def _view(self, replica: _Replica) -> EngineView:
        held = self._holders.held(replica.index)
        return EngineView(replica.index, replica.serving, replica.version, replica.load, held)

    async def _update(self, manifest: WeightsManifest) -> UpdateReport:
        """Update all that serve, and those that begin to serve meanwhile."""
        reports: list[UpdateReport] = []
        refusals: dict[_Replica, WeightUpdateFailed] = {}
        while wanting := [
            one for one in self._replicas if one.serving and one.version != manifest.version and one not in refusals
        ]:
            for replica, outcome in zip(
                wanting, await asyncio.gather(*(self._update_one(one, manifest) for one in wanting)), strict=True
            ):
                if isinstance(outcome, UpdateReport):
                    reports.append(outcome)
                elif isinstance(outcome, WeightUpdateFailed):
                    refusals[replica] = outcome
        if not reports:
            self._check_alive()
            raise next(iter(refusals.values()), EngineDied(f"no engine took up the version: {self._last_death}"))
        self._manifest = manifest
        for replica, refusal in refusals.items():
            self._bury(replica, f"it did not take up version {manifest.version}, which others have: {refusal}")
        return UpdateReport(
            version=manifest.version,
            applied=True,
            fetch_s=max(report.fetch_s for report in reports),
            pause_s=max(report.pause_s for report in reports),
            load_s=max(report.load_s for report in reports),
            probe_error=max(report.probe_error for report in reports),
            loaded=reports[0].loaded,
        )

    async def _update_one(self, replica: _Replica, manifest: WeightsManifest) -> UpdateReport | DriftlineError:
        replica.updating = True
        try:
            report = await replica.engine.update(manifest)
        except WeightUpdateFailed as error:
            return error
        except EngineDied as error:
            self._bury(replica, str(error))
            return error
        finally:
            replica.updating = False
        replica.version = self._newest = manifest.version
        self._tell_change()
        return report

    def _begin_serving(self, replica: _Replica) -> None:
        replica.serving = True
        replica.progress = (replica.engine.status().generated_tokens, self._clock())
        self._tell_change()

    def _bury(self, replica: _Replica, reason: str) -> None:
        """An engine is of no use any more: nothing is sent to it, and it will be closed and replaced."""
        if not replica.serving:
            return
        LOG.error("engine %d of %d is given up: %s", replica.index, len(self._replicas), reason)
        replica.serving = False
        self._last_death = reason
        self._holders.forget(replica.index)
        self._unburied += 1
        self._graves.put_nowait(replica)
        self._tell_change()

    async def _replace_for_ever(self) -> None:
        while True:
            replica = await self._graves.get()
            try:
                await self._replace(replica)
            except Exception as error:
                LOG.exception("engine %d could not be replaced", replica.index)
                self._last_death = str(error)
            self._unburied -= 1
            self._tell_change()

    async def _replace(self, dead: _Replica) -> None:
        """Close an engine, and start others in its place until one serves or no restart is left."""
        await dead.engine.close()
        while self._restarts_left:
            self._restarts_left -= 1
            fresh = _Replica(dead.index, self._make(dead.index))
            self._gone.append(self._replicas[dead.index].engine)
            self._replicas[dead.index] = fresh
            try:
                await fresh.engine.start()
                await self._catch_up(fresh)
            except DriftlineError as error:
                LOG.error(
                    "engine %d did not come back (%d restarts left): %s", dead.index, self._restarts_left, error
                )
                self._last_death = str(error)
                await fresh.engine.close()
            else:
                self._begin_serving(fresh)
                return
        LOG.error("engine %d stays away: the pool has no restart left", dead.index)

    async def _catch_up(self, fresh: _Replica) -> None:
        while self._manifest is not None and fresh.version != self._manifest.version:
            manifest = self._manifest
            await fresh.engine.update(manifest)
            fresh.version = manifest.version

    async def _watch(self) -> None:
        """Give up engines that make no token although they have requests."""
        while True:
            await asyncio.sleep(WATCH_SHARE * self._stall_s)
            self.check_progress()

    def check_progress(self) -> None:
        """Look at every engine once."""
        now = self._clock()
        for replica in self._replicas:
            tokens, load = replica.engine.status().generated_tokens, 0 if replica.updating else replica.load
            replica.progress = stalled_since(tokens, load, now, replica.progress)
            if replica.serving and now - replica.progress[1] > self._stall_s:
                self._bury(replica, f"it made no token for {self._stall_s:g} s with {load} requests")

    def _check_alive(self) -> None:
        if not self._unburied and not any(replica.serving for replica in self._replicas):
            raise EngineDied(f"no engine is left: {self._last_death}")

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _retrieve(update: asyncio.Task[UpdateReport]) -> None:
    if not update.cancelled() and (error := update.exception()) is not None:
        LOG.error("%s", error)
