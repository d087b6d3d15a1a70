"""Tasks sampled by what is learned from them: a real cell, the real trainer loop and a real refresh.

The store is in memory and the engine a script. Every group has to play the task that the step records alone lead to.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from driftline.engine.protocol import GenerationRequest
from driftline.environment import Message, StepResult, Task, level_of, resolve
from driftline.params import RunParameters
from driftline.records import Group, Head, StepRecord, TaskSampling, decode
from driftline.refresh import strata
from driftline.refresh.learnability import learnability
from driftline.rollout import assignment
from driftline.store import keys, tasksets
from driftline.store.memory import MemoryStore
from driftline.store.protocol import WriteResult
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.training import curriculum
from driftline.training.batch import TrainingBatch
from driftline.training.protocol import StepOutcome
from environments.pointer_chase import PointerChase
from tasks.refresh_plan import RefreshParameters, pinned_plan
from tasks.refreshing import carry_out
from tests.support.loop_thread import LoopThread
from tests.support.rollout import FAMILY, encode, undecided
from tests.support.rollout import decode as text_of
from tests.support.toy_run import RUN, Cell, create_run, toy_parameters
from tests.support.training import FakeGroup

NAME = "pointer-chase"
DEADLINE_S = 120.0
KINDS = ("always", "at times", "never")
"""How often a task of `Coins` is solved."""


@dataclass(frozen=True)
class Coins:
    """Tasks without levels: one turn, which is right always, if it is heads, or never."""

    id: str = "coins/v1"
    alphabet: str | None = FAMILY.alphabet
    stop: str = "\n"
    runs_in: str = "loop"

    def generate(self, seed: int, count: int) -> list[Task]:
        """Numbers that no other seed gives: a third of each kind."""
        return [Task.create(self.id, {"solved": KINDS[n % 3], "number": f"{seed}/{n}"}) for n in range(count)]

    def make(self, *, max_turns: int = 20) -> _Coin:
        return _Coin()

    def oracle(self, task: Task) -> Sequence[str] | None:
        return None

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        return None


class _Coin:
    def __init__(self) -> None:
        self._solved = ""

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        self._solved = task.payload["solved"]
        return (Message("user", ":\n"),)

    async def step(self, action: str) -> StepResult:
        right = bool(action) and (self._solved == "always" or (self._solved == "at times" and action == "a"))
        return StepResult(reward=float(right), terminated=True, success=right)

    async def close(self) -> None: ...


def toss(request: GenerationRequest) -> list[int]:
    """Heads or tails of a coin; what else is asked is answered wrongly every third time."""
    if text_of(request.prompt_ids) == ":\n":
        return encode("a\n" if request.seed % 2 else "b\n")
    return undecided(request)


class HeadsOfARun(MemoryStore):
    """Remembers all heads of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[Head] = []

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        written = super().swap(key, body, etag)
        if key == keys.head(RUN):
            self.heads.append(decode(Head, body, key=key))
        return written

    def samplings(self) -> tuple[TaskSampling, ...]:
        """All that were in force, those among them that HEAD has dropped."""
        by_first = {one.first: one for head in self.heads for one in head.task_sampling}
        return tuple(by_first[first] for first in sorted(by_first))


def parameters(environment: str, steps: int) -> RunParameters:
    return toy_parameters(
        environment={"id": environment, "max_turns": 8, "task_sampling": "learnability"},
        rollout={"episodes_in_flight": 24},
        training={"steps": steps},
    )


class WaitsForAVersion(FakeGroup):
    """Trains some steps, and no more before a version is published."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.published = threading.Event()

    def train(self, batch: TrainingBatch) -> StepOutcome:
        assert len(self.batches) < self.steps or self.published.wait(DEADLINE_S)
        return super().train(batch)


class Live:
    """A cell and a trainer, until the run is over."""

    def __init__(self, params: RunParameters, tasks: int, group: FakeGroup) -> None:
        self.params, self.family = params, resolve(params.environment.id)
        self.store = HeadsOfARun()
        self.run_store = create_run(self.store, params, family=self.family, tasks=tasks)
        self._trainer = LoopThread(self.run_store, params, group)

    async def play(self, *beside: Any) -> None:
        self._trainer.start()
        cell = Cell(RunStore(self.store, RUN), self.params, family=self.family, script=toss)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(cell.run(), *beside)
            await self._trainer.end(DEADLINE_S)
        assert self._trainer.failure is None

    async def until_step(self, step: int) -> None:
        while (await asyncio.to_thread(self.run_store.read_head))[0].step < step:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # the store has no event

    def check_every_group(self, groups: Sequence[Group], records: Sequence[StepRecord]) -> None:
        """Each has played what seed, number, version and the records before it lead to, and says of which stratum."""
        samplings, by_version = self.store.samplings(), dict[str, Any]()
        first = tasksets.load_set(self.store, NAME, self.run_store.describe().task_set)
        origin = strata.members(first, partial(level_of, self.family))
        assert len(samplings) == len(records)
        for at, sampling in enumerate(samplings):
            told = curriculum.task_sampling(records[: at + 1], sampling.first, self.params.rollout.group_size)
            assert sampling == told, f"after step {at + 1}"
        for group in groups:
            if group.task_set not in by_version:
                found = tasksets.load_set(self.store, NAME, group.task_set)
                by_version[group.task_set] = found, strata.members(found, partial(level_of, self.family))
            found, members = by_version[group.task_set]
            [stratum] = {member.stratum for member in group.trajectories}
            assert stratum == strata.stratum_of(
                _task(found.tasks, group.task_id), found, partial(level_of, self.family)
            )
            sampling = assignment.sampling_of(samplings, group.number)
            if sampling is None:
                assert group.number < samplings[0].first
                continue
            index = assignment.stratified_task_index(
                self.params.seed, group.number, group.task_set, members, sampling, strata.shares(members, origin)
            )
            assert group.task_id == found.tasks[index].id, group.number


def _task(tasks: Sequence[Task], task_id: str) -> Task:
    return next(task for task in tasks if task.id == task_id)


async def test_a_family_without_levels_is_sampled_by_the_pools_of_its_refresh():
    trainer = WaitsForAVersion(steps=12)
    live = Live(parameters(f"{__name__}:Coins", steps=40), 48, trainer)
    first = live.run_store.describe().task_set
    options = RefreshParameters.model_validate(
        {
            "proposals": 36,
            "window": 36,
            "probe_tasks": 12,
            "probe_members": 4,
            "recent_steps": 12,
            "near_duplicate": 1,
        }
    )

    async def never(request: Any) -> None:
        raise AssertionError("the run is under way: its cell measures")

    async def refresh() -> str:
        await live.until_step(trainer.steps)
        plan = await asyncio.to_thread(
            pinned_plan, live.store, live.family, NAME, seed=7, size=72, held_out_tasks=8, options=options,
            environment=live.params.environment.id,
        )  # fmt: skip
        published = await carry_out(live.store, live.family, plan, never)
        trainer.published.set()
        return published.version

    refreshing = asyncio.create_task(refresh())
    await live.play(refreshing)
    second = refreshing.result()
    head, records = live.run_store.read_head()[0], live.run_store.steps()
    assert [version for _, version in head.task_sets] == [first, second]
    groups = RunStore(live.store, RUN).new_groups()
    live.check_every_group(groups, records)

    curated = tasksets.load_set(live.store, NAME, second)
    pools = {pool: {task.payload["solved"] for task in curated.tasks if curated.notes[task.id].pool == pool}
             for pool in ("useful", "too_hard", "unmeasured")}  # fmt: skip
    assert pools["useful"] == {"at times"}
    assert {"never"} <= pools["too_hard"] <= {"never", "at times"}
    played = Counter(group.trajectories[0].stratum for group in groups if group.task_set == second)
    assert set(played) <= {f"coins/v1/{pool}" for pool in pools}
    assert played["coins/v1/useful"] > played["coins/v1/too_hard"] > 0
    weights = head.task_sampling[-1].weights
    assert weights["coins/v1/too_hard"] < weights["coins/v1/useful"]
    assert {use.stratum for use in records[0].groups} == {"coins/v1"}, "before it, all of one"
    assert records[0].metrics[metrics.EFFECTIVE_STRATA] == 1.0
    assert max(record.metrics[metrics.EFFECTIVE_STRATA] for record in records) > 1.0


async def test_of_a_mixture_each_level_and_each_environment_without_levels_is_a_stratum():
    live = Live(parameters(f"pointer_chase/v1 + {__name__}:Coins", steps=30), 96, FakeGroup())
    await live.play()
    records, groups = live.run_store.steps(), RunStore(live.store, RUN).new_groups()
    live.check_every_group(groups, records)
    levels = {strata.of_level("pointer_chase/v1", level) for level in range(PointerChase().levels)}
    seen = {use.stratum for record in records for use in record.groups}
    assert "coins/v1" in seen
    assert len(seen & levels) > 2
    assert seen <= {"coins/v1"} | levels
    for record in records:
        for use in record.groups:
            assert use.stratum.startswith(_environment_of(live, use.task_id))
    weights = live.run_store.read_head()[0].task_sampling[-1].weights
    members = live.params.rollout.group_size
    lengths = [use.sampled_tokens / use.valid_members for record in records for use in record.groups]
    most = max(learnability(share / 100, members) for share in range(101)) * max(lengths) / min(lengths)
    assert all(0 < weight <= most for weight in weights.values())
    assert [record.ledger.imbalance for record in records if record.ledger] == [0] * len(records)


def _environment_of(live: Live, task_id: str) -> str:
    return _task(tasksets.load(live.store, NAME, live.run_store.describe().task_set), task_id).environment
