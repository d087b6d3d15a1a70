"""The loop of a rollout cell: keeps as many episodes in flight as may be, across groups and batches.

| who | takes | gives | waits for | unblocked by |
|---|---|---|---|---|
| follower | HEAD | engine version, admission | its period; an update | the store; the engine, or its deadline |
| dispatcher | admission, open groups, slots | claims, episodes | a wake | HEAD, a claim, an episode, a lease's end |
| claims (`CLAIMS_IN_FLIGHT`) | group numbers | open groups | the store | its answer, or its patience |
| slots | the engine's pressure | how many episodes may be in flight | its period | - |
| episodes (as many as there are slots) | open groups | trajectories | engine, environment | their deadlines |
| writer (one PUT at a time) | finished groups | objects | a finished group | the last member of a group |
| keeper | open groups | leases, reports | its period | - |
| prober | a refresh's requests, slots of its own | results of probe groups | its period | engine, environment |

Nothing queues without bound: groups are claimed only below the admission limit, and started only below that of the
HEAD whose version the engine has acknowledged. What to claim, start and cancel is decided in `scheduler`. The first
failure of any of them ends the cell; finished groups are written out first, and unfinished ones released.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from driftline.errors import ProbeNotReproduced, StoreError
from driftline.params import RunParameters
from driftline.records import Group
from driftline.rollout import assignment, scheduler
from driftline.rollout.background import StoreThreads, cancel_and_wait
from driftline.rollout.concurrency import slots_of
from driftline.rollout.episode import Episode, EpisodeResources, EpisodeSpec
from driftline.rollout.follower import HeadFollower
from driftline.rollout.groups import OpenGroup, TaskSource
from driftline.rollout.keeper import Keeper
from driftline.rollout.place import CellPlace
from driftline.rollout.planner import Planner
from driftline.rollout.prober import Prober
from driftline.rollout.tally import CELL_ENDED, CLAIM_LOST, TokenTally
from driftline.rollout.telemetry import Telemetry
from driftline.rollout.writer import GroupWriter
from driftline.rollout.written import WrittenObjects
from driftline.store.run_store import RunStore

LOG = logging.getLogger(__name__)

CLAIMS_IN_FLIGHT = 6
FLUSH_DEADLINE_S = 10.0
LAST_WORD_DEADLINE_S = 5.0


class Collector:
    """Plays the run's groups until HEAD says that the run is over."""

    def __init__(
        self,
        *,
        run_store: RunStore,
        place: CellPlace,
        parameters: RunParameters,
        resources: EpisodeResources,
        tasks: TaskSource,
        telemetry: Telemetry,
        tally: TokenTally,
        threads: StoreThreads,
        prober: Prober | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_store = run_store
        self._place = place
        self._rollout = parameters.rollout
        self._limits = parameters.limits
        self._max_lag = parameters.overlap.max_lag_versions
        self._resources = resources
        self._tasks = tasks
        self._telemetry = telemetry
        self._tally = tally
        self._threads = threads
        self._monotonic = monotonic
        self._prober = prober
        self._planner = Planner(
            parameters.scheduling.order, groups_per_step=self._rollout.groups_per_step, monotonic=monotonic
        )
        telemetry.prediction_error = self._planner.error
        self._ledger = scheduler.GroupLedger()
        self._open: dict[int, OpenGroup] = {}
        self._claiming: set[asyncio.Task[None]] = set()
        self._playing: set[asyncio.Task[None]] = set()
        self._slots = slots_of(parameters, resources.engine, lambda: len(self._playing))
        telemetry.episodes_limit = lambda: self._slots.limit
        telemetry.works = lambda: bool(
            self._playing or self._claiming or any(group.complete for group in tuple(self._open.values()))
        )
        self._wake = asyncio.Event()
        self._head_changed = True
        self._failure: BaseException | None = None
        self._record: str | None = None
        self._delivered = 0
        self._written = WrittenObjects()
        self._writer: GroupWriter | None = None
        self._follower = HeadFollower(
            run_store,
            resources.engine,
            threads,
            reader=f"{place.name}-{tally.incarnation}",
            update_deadline_s=parameters.engine.request_deadline_s,
            on_head=self._on_head,
            on_applied=telemetry.applied,
            on_refused=telemetry.refused,
            is_idle=lambda: not self._playing,
            clock=resources.clock,
        )
        self._keeper = Keeper(
            run_store,
            resources.engine,
            threads,
            open_groups=self._open,
            lease_s=self._rollout.lease_s,
            stall_s=parameters.engine.request_deadline_s,
            on_lost=self._on_lost,
            report=self._report,
            monotonic=monotonic,
        )

    async def collect(self) -> None:
        """Collect until the run is over.

        Raises:
            EngineDied: The engine failed a request, or made no token for `engine.request_deadline_s`.
            WeightUpdateFailed: It does not hold the weights it should.
            StoreUnavailable: The store did not come back in time.
            DeadlineExceeded: No policy was published in time.
        """
        with self._resources.guard.installed():
            await self._telemetry.begin()
            await self._begin_following()
            await self._begin_ledger()
            sequence = await self._threads.run(self._run_store.next_sequence, self._place.name)
            self._tally.continue_at(sequence)
            writer = self._writer = GroupWriter(
                self._run_store,
                self._place.name,
                sequence,
                self._threads,
                is_urgent=self._is_urgent,
                account=self._tally.account,
                on_written=self._on_written,
            )
            writing = asyncio.create_task(writer.write(), name="writer")
            services = [
                *([asyncio.create_task(self._prober.work(), name="prober")] if self._prober else []),
                asyncio.create_task(self._follower.follow(), name="follower"),
                asyncio.create_task(self._dispatch(), name="dispatcher"),
                asyncio.create_task(self._slots.adapt(self._wake.set), name="slots"),
                asyncio.create_task(self._keeper.keep(), name="keeper"),
            ]
            try:
                await self._until_over([*services, writing])
            finally:
                await cancel_and_wait([*services, *self._claiming, *self._playing])
                await self._leave(writer, writing)

    async def _until_over(self, services: Sequence[asyncio.Task[None]]) -> None:
        """Wait until HEAD ends the follower or the dispatcher, or until anything fails."""
        done, _ = await asyncio.wait(services, return_when=asyncio.FIRST_COMPLETED)
        for service in done:
            service.result()

    async def _leave(self, writer: GroupWriter, writing: asyncio.Task[None]) -> None:
        """Write what is finished, release what is not, and say the last word. Failures here are only logged."""
        flushing = asyncio.create_task(writer.flush(), name="flush")
        try:
            await asyncio.wait([flushing, writing], timeout=FLUSH_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            for group in self._open.values():
                if not group.complete:
                    self._tally.drop(group.number, group.claim.attempt, CELL_ENDED)
            async with asyncio.timeout(LAST_WORD_DEADLINE_S):
                await self._telemetry.report(self._follower.newest, 0, 0, final=True)
                if self._follower.newest.state == "running":
                    claims = [group.claim for group in self._open.values()]
                    await asyncio.gather(*(self._threads.run(self._run_store.release, claim) for claim in claims))
        except (StoreError, TimeoutError) as error:
            LOG.warning("not everything could be written at the end: %r", error)
        finally:
            await cancel_and_wait([flushing, writing])

    async def _begin_following(self) -> None:
        try:
            await self._follower.begin(self._limits.batch_deadline_s)
        except ProbeNotReproduced:
            # Or a cell that fails each time it starts would never be heard of.
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(LAST_WORD_DEADLINE_S):
                    await self._telemetry.report(self._follower.newest, 0, 0, final=True)
            raise

    async def _begin_ledger(self) -> None:
        records = await self._threads.run(self._run_store.steps)
        closed = [use.group for record in records for use in record.groups]
        closed += [give_up.group for record in records for give_up in record.give_ups]
        closed += self._follower.newest.given_up
        self._ledger = scheduler.GroupLedger(closed=closed, offset=self._place.index, stride=self._place.cells)
        self._record = self._follower.newest.record
        self._delivered = self._follower.newest.spent

    # ---- the dispatcher

    async def _dispatch(self) -> None:
        while self._follower.newest.state == "running":
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            if self._head_changed:
                self._head_changed = False
                self._cancel_useless()
                await self._close_consumed()
                self._reopen_damaged()
            self._claim_more()
            self._start_more()
            self._telemetry.waiting.set(self._waits_for())
            await self._woken()

    async def _woken(self) -> None:
        retry = self._ledger.next_retry()
        timeout_s = None if retry is None else max(0.0, retry - self._monotonic())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _cancel_useless(self) -> None:
        """Cancel episodes that could only arrive too old, and those of groups that were given up."""
        head = self._follower.newest
        newest = head.version.number if head.version else 0
        for group in self._open.values():
            for episode in group.episodes.values():
                if scheduler.too_old(episode.oldest_version, newest, self._max_lag):
                    episode.cancel(
                        f"begun at version {episode.oldest_version}, now {newest}: it could only arrive beyond "
                        f"overlap.max_lag_versions ({self._max_lag})"
                    )
                elif group.number in head.given_up:
                    episode.cancel("its group was given up")

    async def _close_consumed(self) -> None:
        """Learn from new step records which of the groups held elsewhere are done with."""
        newest = self._follower.newest
        self._ledger.close(newest.given_up)
        key, known = newest.record, self._record
        while self._ledger.elsewhere and key is not None and key != known:
            record = await self._threads.run(self._run_store.read_step, key)
            self._ledger.close([use.group for use in record.groups])
            self._ledger.close([give_up.group for give_up in record.give_ups])
            key = record.previous
        self._record = newest.record

    def _reopen_damaged(self) -> None:
        """Play groups again that this cell has finished, if the trainer cannot read their objects."""
        for key, groups in self._written.take(self._follower.newest.set_aside).items():
            LOG.error("%s cannot be read: groups %s are to be played again", key, groups)
            self._ledger.reopen(groups, self._monotonic())
            self._delivered -= len(groups)

    def _claim_more(self) -> None:
        rollout = self._rollout
        limit = scheduler.admission_limit(self._follower.newest, rollout.groups_per_step)
        # Groups beyond a lead that was cut wait for later, and must not stand in the way of those that may start.
        waiting = sum(len(group.waiting) for group in self._open.values() if group.number < limit)
        waiting += len(self._claiming) * rollout.group_size
        wanted = scheduler.claims_wanted(
            self._slots.free, waiting, rollout.group_size, ahead=self._planner.ahead_groups
        )
        count = min(wanted, CLAIMS_IN_FLIGHT - len(self._claiming))
        for group in self._ledger.take(limit, count, self._monotonic()):
            self._spawn(self._claim(group), self._claiming, f"claim of group {group}")

    async def _claim(self, number: int) -> None:
        head = self._follower.newest
        task_set = assignment.task_set_of(head.task_sets, number)
        task = await self._tasks.of_group(number, head.task_sets, assignment.sampling_of(head.task_sampling, number))
        asked_at = self._monotonic()
        claim = await self._threads.run(
            self._run_store.claim, number, self._place.name, task.id, task_set, self._rollout.lease_s
        )
        if claim is None:
            self._ledger.held_elsewhere(number, self._monotonic() + self._rollout.lease_s)
            return
        task = task if claim.task_id == task.id else await self._tasks.of_claim(claim)
        stratum, rollout = await self._tasks.stratum(task, claim.task_set), self._rollout
        self._open[number] = OpenGroup(claim, task, rollout.group_size, asked_at, rollout.surplus_members, stratum)

    def _start_more(self) -> None:
        acknowledged = self._follower.acknowledged
        if acknowledged is None:
            return
        limit = scheduler.admission_limit(acknowledged, self._rollout.groups_per_step)
        for number, member in self._planner.starts(
            self._open.values(), self._slots.free, limit, slots=self._slots.limit
        ):
            group = self._open[number]
            group.waiting.remove(member)
            playing = self._spawn(self._play(group, member), self._playing, f"episode {number}.{member}")
            group.playing[member] = playing

    async def _play(self, group: OpenGroup, member: int) -> None:
        claim, priority = group.claim, self._planner.begin(group, member)
        spec = EpisodeSpec(
            self._run_store.run, claim.cell, claim.group, member, claim.attempt, group.task, claim.task_set, priority,
            group.stratum,
        )  # fmt: skip
        episode = group.episodes[member] = Episode(spec, self._resources)
        self._tally.begin(episode)
        ended, trajectory = False, None
        try:
            trajectory = await episode.play()
            ended = episode.failure is None
        finally:
            del group.episodes[member], group.playing[member]
            self._planner.end(group, member, trajectory)
            held = self._open.get(group.number) is group
            if ended and held:
                self._tally.finish(episode)
            else:
                self._tally.throw_away(episode, CELL_ENDED if held else CLAIM_LOST)
        if episode.failure is not None:
            raise episode.failure
        if trajectory is None or not held:
            return
        self._telemetry.finished(episode, trajectory)
        group.finish(member, trajectory)
        if group.complete:
            assert self._writer is not None
            self._writer.put(group.as_group())

    def _waits_for(self) -> str | None:
        """What a cell without episodes waits for: the engine's new weights, claims, or the trainer."""
        if self._playing:
            return None
        if self._follower.newest.version != self._follower.version:
            return "apply"
        return "claim" if self._claiming else "trainer"

    def _spawn(
        self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]], name: str
    ) -> asyncio.Task[None]:
        """Start a task whose failure becomes the dispatcher's."""
        task = asyncio.create_task(work, name=name)
        among.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            among.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._failure = self._failure or error
            self._wake.set()

        task.add_done_callback(ended)
        return task

    # ---- what the others tell

    def _on_head(self) -> None:
        self._head_changed = True
        self._wake.set()
        if self._writer is not None:
            self._writer.nudge()

    def _is_urgent(self, queued: int) -> bool:
        per_step = self._rollout.groups_per_step
        return scheduler.completes_a_batch(queued, self._delivered, self._follower.newest.spent, per_step)

    def _on_lost(self, group: OpenGroup) -> None:
        """Another cell has taken the group: drop what is unfinished; what is finished will count once."""
        del self._open[group.number]
        self._telemetry.counters.lost_groups += 1
        if not group.complete:
            self._tally.drop(group.number, group.claim.attempt, CLAIM_LOST)
        for playing in group.playing.values():
            playing.cancel()
        self._ledger.held_elsewhere(group.number, self._monotonic() + self._rollout.lease_s)
        self._wake.set()

    async def _report(self) -> None:
        waiting = sum(len(group.waiting) for group in self._open.values())
        await self._telemetry.report(self._follower.newest, len(self._playing), waiting)

    def _on_written(self, key: str, groups: Sequence[Group]) -> None:
        self._tally.written(groups)
        self._telemetry.written(groups)
        self._written.note(key, (group.number for group in groups))
        self._delivered += len(groups)
        self._ledger.close(group.number for group in groups)
        for group in groups:
            self._open.pop(group.number, None)
