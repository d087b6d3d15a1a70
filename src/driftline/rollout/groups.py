"""The groups a cell has claimed, and the tasks they play."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from driftline.environment import Task
from driftline.errors import ConfigurationError
from driftline.records import Claim, Group, TaskSampling, Trajectory, TrajectoryStatus
from driftline.refresh import strata
from driftline.rollout import assignment
from driftline.rollout.background import StoreThreads, cancel_and_wait
from driftline.rollout.episode import Episode
from driftline.store import tasksets
from driftline.store.protocol import ObjectStore
from driftline.store.tasksets import TaskSet

REPLACED: frozenset[TrajectoryStatus] = frozenset({"env_error", "timeout"})
"""How a member ends whose place a surplus member takes. What was cancelled is too old, and so is its replacement."""


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A claimed group: its members wait, are being played, or are finished."""

    claim: Claim
    task: Task
    size: int
    """Members, surplus ones that were called in among them."""
    renewed_at: float
    """Monotonic seconds at which the lease was last taken."""
    surplus: int = 0
    """Members that may yet be played in place of others that failed."""
    stratum: str = ""
    """Of the task."""
    waiting: list[int] = field(init=False)
    episodes: dict[int, Episode] = field(default_factory=dict[int, Episode])
    playing: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    finished: dict[int, Trajectory] = field(default_factory=dict[int, Trajectory])

    def __post_init__(self) -> None:
        self.waiting = list(range(self.size))

    @property
    def number(self) -> int:
        """The group's number."""
        return self.claim.group

    @property
    def unfinished(self) -> int:
        """Members that have not ended, those that wait among them."""
        return self.size - len(self.finished)

    @property
    def complete(self) -> bool:
        """Whether every member has ended."""
        return self.unfinished == 0

    def finish(self, member: int, trajectory: Trajectory) -> None:
        """A member has ended. If it failed, a surplus member takes its place, as long as there are any.

        A member that failed stays in the group and counts for nothing in it. One that is merely slow is never
        replaced: whoever takes the first of two valid members favours short answers.
        """
        self.finished[member] = trajectory
        if trajectory.status in REPLACED and self.surplus:
            self.surplus -= 1
            self.waiting.append(self.size)
            self.size += 1

    def as_group(self) -> Group:
        """The finished group, members in order."""
        trajectories = tuple(self.finished[member] for member in sorted(self.finished))
        return Group(self.number, self.task.id, self.claim.task_set, trajectories)


Pairs = Sequence[tuple[int, str]]


class TaskSource:
    """The task sets of a run, each version read once."""

    def __init__(
        self, store: ObjectStore, name: str, seed: int, threads: StoreThreads, level_of: Callable[[Task], int | None]
    ) -> None:
        """Begin with nothing read.

        Args:
            store: Where the task sets are.
            name: The task set's name.
            seed: Of the run.
            threads: In which versions are read.
            level_of: Level of difficulty of a task, None where it has none.
        """
        self._store = store
        self._name = name
        self._seed = seed
        self._threads = threads
        self._level_of = level_of
        self._loading: dict[str, asyncio.Task[TaskSet]] = {}
        self._by_id: dict[str, dict[str, Task]] = {}
        self._strata: dict[str, dict[str, tuple[int, ...]]] = {}

    async def of_group(self, group: int, task_sets: Pairs, sampling: TaskSampling | None = None) -> Task:
        """The task that a group number plays: by strata, where there is a sampling of them, else by pools.

        Args:
            group: Group number.
            task_sets: HEAD's pairs (first group, version).
            sampling: Weights of the strata. They count times what each had of the first of the versions.
        """
        task_set = assignment.task_set_of(task_sets, group)
        found = await self._load(task_set)
        if sampling is not None:
            of, origin = await self._strata_of(task_set), await self._strata_of(task_sets[0][1])
            index = assignment.stratified_task_index(
                self._seed, group, task_set, of, sampling, strata.shares(of, origin)
            )
        elif found.weights:
            index = assignment.pooled_task_index(self._seed, group, task_set, found.members, found.weights)
        else:
            index = assignment.task_index(self._seed, group, task_set, len(found.tasks))
        return found.tasks[index]

    async def of_claim(self, claim: Claim) -> Task:
        """The task that a claim names, which somebody else may have chosen from another task-set version.

        Raises:
            ConfigurationError: The task set does not hold it.
        """
        found = await self._load(claim.task_set)
        by_id = self._by_id.setdefault(claim.task_set, {task.id: task for task in found.tasks})
        if claim.task_id not in by_id:
            raise ConfigurationError(
                f"task {claim.task_id} of group {claim.group} is not in task set {self._name} {claim.task_set}"
            )
        return by_id[claim.task_id]

    async def stratum(self, task: Task, task_set: str) -> str:
        """The stratum of a task of a version."""
        return strata.stratum_of(task, await self._load(task_set), self._level_of)

    async def close(self) -> None:
        """Stop loading. Those that wait for it are cancelled."""
        await cancel_and_wait(self._loading.values())

    async def _strata_of(self, task_set: str) -> dict[str, tuple[int, ...]]:
        if task_set not in self._strata:
            self._strata[task_set] = strata.members(await self._load(task_set), self._level_of)
        return self._strata[task_set]

    async def _load(self, task_set: str) -> TaskSet:
        if task_set not in self._loading:
            read = partial(tasksets.load_set, self._store, self._name, task_set)
            self._loading[task_set] = asyncio.create_task(self._threads.run(read))
        return await asyncio.shield(self._loading[task_set])
