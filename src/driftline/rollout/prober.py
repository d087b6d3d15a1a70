"""Plays probe groups in a cell, beside its own groups, or in a process that does nothing else.

A probe group is one task, `members` times, with the policy that the engine holds at the moment. Only how often it was
solved is kept. Few episodes of them are in flight at a time, and their requests come after all others in the engine's
queue, so that they fill what the run leaves free.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence

from driftline.environment import Task
from driftline.errors import CorruptObject, ObjectMissing
from driftline.params import RunParameters
from driftline.records import Claim, Trajectory
from driftline.rollout.background import StoreThreads, cancel_and_wait
from driftline.rollout.episode import Episode, EpisodeResources, EpisodeSpec
from driftline.rollout.place import CellPlace
from driftline.store import tasksets
from driftline.store.claims import ClaimBook
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult, probe_claim
from driftline.store.protocol import ObjectStore

LOG = logging.getLogger(__name__)

POLL_S = 2.0
PRIORITY = 1 << 30
"""Behind every group of the run."""
FIRST_NUMBER = 1 << 40
"""Probe groups are numbered from here on in requests and seeds: no group of a run has such a number."""


class Prober:
    """Works on a run's requests for probe groups."""

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        place: CellPlace,
        resources: EpisodeResources,
        threads: StoreThreads,
        *,
        episodes: int,
        lease_s: float,
        on_begin: Callable[[Episode], None] = lambda episode: None,
        on_end: Callable[[Episode], None] = lambda episode: None,
    ) -> None:
        """Begin without a request.

        Args:
            store: Where requests and candidates are.
            run: The run.
            place: The cell's place among those that share the work.
            resources: What episodes are played with.
            threads: Carry out calls of the store.
            episodes: Most episodes of probe groups in flight.
            lease_s: Seconds that a claim holds; a group that takes longer may be played twice, and counts once.
            on_begin: Called with every episode before it is played.
            on_end: Called with it when it has ended, in whatever way.
        """
        self._store = store
        self._run = run
        self._place = place
        self._resources = resources
        self._threads = threads
        self._episodes = episodes
        self._lease_s = lease_s
        self._on_begin = on_begin
        self._on_end = on_end
        self._book = ProbeBook(store, run)
        self._slots = asyncio.Semaphore(episodes)
        self._done: str = ""
        """Request in which nothing was left for this cell."""

    async def work(self) -> None:
        """Look for requests and work on them, until cancelled. One whose tasks cannot be read is passed over."""
        while True:
            request = await self._threads.run(self._book.open_request)
            if request is not None and request.id != self._done:
                try:
                    left = await self.serve(request, while_open=True)
                except (ObjectMissing, CorruptObject) as error:
                    LOG.error("probe groups of %s are not played: %s", request.id, error)
                    left = 0
                self._done = "" if left else request.id
            await asyncio.sleep(POLL_S)

    async def serve(self, request: ProbeRequest, *, while_open: bool = False) -> int:
        """Play what of a request is neither finished nor held by others.

        Args:
            request: Says which tasks, and how often.
            while_open: Begin no further group once the run's cells are to work on another request, or on none.

        Returns:
            How many groups are left: held by others, or not begun.

        Raises:
            ObjectMissing: Its tasks are not there.
            CorruptObject: They cannot be read, or are others.
        """
        tasks = await self._threads.run(self._tasks, request)
        finished = await self._threads.run(self._book.finished, request)
        numbers = [number for number in self._order(len(tasks)) if number not in finished]
        claims = self._book.claims(request)
        wanted, played = iter(numbers), list[int]()

        async def play_all() -> None:
            for number in wanted:
                if while_open and not await self._is_open(request):
                    return
                if await self._play_group(request, number, tasks[number], claims):
                    played.append(number)

        players = [asyncio.create_task(play_all()) for _ in range(max(1, self._episodes // request.members))]
        try:
            await asyncio.gather(*players)
        finally:
            await cancel_and_wait(players)
        left = len(numbers) - len(played)
        if numbers:
            LOG.info("probe groups of %s: %d played, %d left", request.id, len(played), left)
        return left

    async def _is_open(self, request: ProbeRequest) -> bool:
        found = await self._threads.run(self._book.open_request)
        return found is not None and found.id == request.id

    async def _play_group(self, request: ProbeRequest, number: int, task: Task, claims: ClaimBook) -> bool:
        """Claim and play a group; returns False where somebody else holds it."""
        wanted = probe_claim(number, self._place.name, task.id, request.version)
        claim = await self._threads.run(claims.claim, wanted, self._lease_s)
        if claim is None:
            return False
        members = [asyncio.create_task(self._play(request, claim, task, m)) for m in range(request.members)]
        try:
            played = await asyncio.gather(*members)
        except BaseException:
            await cancel_and_wait(members)
            await self._threads.run(claims.release, claim)
            raise
        await self._threads.run(self._book.finish, result_of(request, claim, played))
        return True

    async def _play(self, request: ProbeRequest, claim: Claim, task: Task, member: int) -> Trajectory:
        spec = EpisodeSpec(
            self._run,
            self._place.name,
            number_of(request, claim.group),
            member,
            claim.attempt,
            task,
            request.version,
            PRIORITY,
        )
        async with self._slots:
            episode = Episode(spec, self._resources)
            self._on_begin(episode)
            try:
                trajectory = await episode.play()
            finally:
                self._on_end(episode)
        if episode.failure is not None:
            raise episode.failure
        return trajectory

    def _tasks(self, request: ProbeRequest) -> list[Task]:
        """The tasks of a request, in its order."""
        by_id = {task.id: task for task in tasksets.load(self._store, request.task_set, request.version)}
        missing = [task_id for task_id in request.task_ids if task_id not in by_id]
        if missing:
            raise CorruptObject(
                f"request {request.id}: {request.task_set} {request.version} has no task {missing[0]}"
            )
        return [by_id[task_id] for task_id in request.task_ids]

    def _order(self, groups: int) -> list[int]:
        """All groups, this cell's own first: cells meet only where one has nothing of its own left."""
        own = range(self._place.index, groups, self._place.cells)
        return [*own, *(number for number in range(groups) if number % self._place.cells != self._place.index)]


def probe_lease_s(parameters: RunParameters) -> float:
    """Seconds that the claim of a probe group holds: nobody renews it, so it outlasts an episode."""
    return parameters.rollout.lease_s + parameters.environment.episode_deadline_s


def number_of(request: ProbeRequest, number: int) -> int:
    """What a probe group is called in requests and seeds: another number for every request."""
    digest = hashlib.blake2b(request.id.encode(), digest_size=2).digest()
    return FIRST_NUMBER + (int.from_bytes(digest) << 24) + number


def result_of(request: ProbeRequest, claim: Claim, played: Sequence[Trajectory]) -> ProbeResult:
    """What came of a probe group."""
    valid = [trajectory for trajectory in played if trajectory.valid]
    versions = [segment.version for trajectory in played for segment in trajectory.segments]
    return ProbeResult(
        request=request.id,
        number=claim.group,
        task_id=claim.task_id,
        attempts=len(valid),
        solved=sum(bool(trajectory.success) for trajectory in valid),
        invalid=len(played) - len(valid),
        sampled_tokens=sum(trajectory.sampled_tokens for trajectory in played),
        policy_version=min(versions, default=-1),
        cell=claim.cell,
    )
