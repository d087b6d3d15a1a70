"""A whole run without models: a run in a memory store, a toy trainer that commits steps, and cells."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from driftline.engine.scripted import ScriptedEngine
from driftline.engine.tokens import save_character_tokenizer
from driftline.environment import Task
from driftline.params import RunParameters
from driftline.records import (
    GiveUp,
    Group,
    GroupUse,
    Head,
    ModelSource,
    PolicyVersion,
    RunDescription,
    StepRecord,
    StepTimes,
)
from driftline.rollout.cell import collect
from driftline.rollout.telemetry import Counters
from driftline.store import keys, tasksets
from driftline.store.files import directory_digest, upload_directory
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore, TrainerLease
from driftline.tracking import metrics
from driftline.tracking.traces import EpisodeTrace
from driftline.training.task_sets import TaskSetFollower
from tests.support.rollout import FAMILY, RENDERER, manifest, parameters, solve

RUN = "toy"
NO_MODEL = ModelSource("0", "models/0/", (), False)
WAIT_S = 30.0


def toy_parameters(**sections: dict[str, Any]) -> RunParameters:
    """Small batches, and an engine that is a script; sections are merged over that."""
    base: dict[str, dict[str, Any]] = {
        "rollout": {"groups_per_step": 3, "group_size": 4, "episodes_in_flight": 16},
        "overlap": {"lead_groups": 3},
        "tracking": {"traces_every_steps": 2, "traces_per_sample": 2},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return parameters(**base)


@dataclass
class RecordingSink:
    """Keeps what is logged."""

    points: list[tuple[str, float, int]] = field(default_factory=list[tuple[str, float, int]])
    episodes: list[EpisodeTrace] = field(default_factory=list[EpisodeTrace])

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        metrics.check(values)
        self.points += [(name, value, step) for name, value in values.items()]

    def log_episode(self, episode: EpisodeTrace) -> None:
        self.episodes.append(episode)

    def close(self, deadline_s: float = 0.0) -> bool:
        return True


def create_run(
    store: ObjectStore,
    params: RunParameters,
    *,
    run: str = RUN,
    family: Any = FAMILY,
    tasks: int = 32,
    held_out: Sequence[Task] = (),
    model: ModelSource = NO_MODEL,
) -> RunStore:
    """Publish tasks, and create a run with a head that names no version yet."""
    name = params.environment.task_set
    kept = held_out or family.generate(99, 8)
    version = tasksets.publish(store, name, family.generate(1, tasks), held_out=kept)
    held_out_version = tasksets.head(store, tasksets.held_out_name(name)).version
    run_store = RunStore(store, run)
    run_store.create(
        RunDescription(
            run=run,
            created_unix=0.0,
            parameters=params.model_dump(mode="json"),
            code_version="test",
            model=model,
            task_set=version,
            held_out_task_set=held_out_version,
            mlflow_run=None,
        )
    )
    run_store.create_head(
        Head(
            epoch=0,
            step=0,
            version=None,
            record=None,
            spent=0,
            given_up=(),
            lead_groups=params.overlap.lead_groups,
            task_sets=((0, version),),
        )
    )
    return run_store


def check_once_each(groups: list[Group], size: int) -> None:
    """Every (group, member) is there exactly once (agent-lightning#355, #480)."""
    members = Counter((t.group, t.member) for group in groups for t in group.trajectories)
    assert set(members.values()) == {1}
    assert members.keys() == {(group.number, member) for group in groups for member in range(size)}


@dataclass
class ToyTrainer:
    """Takes the lowest-numbered finished groups, "trains" for `train_s`, and commits the next version."""

    run_store: RunStore
    params: RunParameters
    steps: int
    train_s: float = 0.0
    finish: bool = True
    leads: Sequence[int] = ()
    """The lead after each step, in turn; none leaves it as it is."""
    batches: list[list[Group]] = field(default_factory=list[list[Group]])
    given_up: list[int] = field(default_factory=list[int])
    task_sets: TaskSetFollower | None = None

    async def run(self) -> None:
        lease = await asyncio.to_thread(self.run_store.take_epoch)
        self.task_sets = TaskSetFollower(self.run_store.store, self.params, self.run_store.steps(), lease.head)
        if lease.head.version is None:
            self._publish(lease, 0)
            lease.commit(replace(lease.head, version=PolicyVersion(0, lease.epoch)))
        cursor, ready = self.run_store.trajectory_cursor(), list[Group]()
        used = {use.group for record in self.run_store.steps() for use in record.groups}
        while lease.head.step < self.steps:
            ready += [group for group in await asyncio.to_thread(cursor.poll) if group.number not in used]
            self._give_up(lease, ready)
            ready.sort(key=lambda group: group.number)
            batch = ready[: self.params.rollout.groups_per_step]
            if len(batch) == self.params.rollout.groups_per_step:
                del ready[: len(batch)]
                await asyncio.sleep(self.train_s)
                self.batches.append(batch)
                self._commit(lease, batch)
            await asyncio.sleep(0.005)
        if self.finish:
            lease.commit(replace(lease.head, state="finished"))

    def _give_up(self, lease: TrainerLease, ready: list[Group]) -> None:
        for group in [group for group in ready if group.valid_members < 2]:
            ready.remove(group)
            self.given_up.append(group.number)
            head = lease.head
            lease.commit(replace(head, spent=head.spent + 1, given_up=(*head.given_up, group.number)))

    def _publish(self, lease: TrainerLease, number: int) -> None:
        self.run_store.write_manifest(manifest(number, self.run_store.run, lease.epoch))

    def _commit(self, lease: TrainerLease, batch: list[Group]) -> None:
        head = lease.head
        assert head.version is not None
        number = head.step + 1
        self._publish(lease, number)
        version = PolicyVersion(number, lease.epoch)
        now = time.time()
        key = self.run_store.write_step(
            StepRecord(
                run=self.run_store.run,
                step=number,
                epoch=lease.epoch,
                version_in=head.version,
                version_out=version,
                groups=tuple(plain_use(group) for group in batch),
                give_ups=tuple(GiveUp(group, "test", 0) for group in head.given_up),
                metrics={},
                time_to_batch_s={},
                times=StepTimes(now, now, now, now, now, now),
                previous=head.record,
            )
        )
        spent = head.spent + len(batch)
        lead = self.leads[number % len(self.leads)] if self.leads else head.lead_groups
        assert self.task_sets is not None
        task_sets = self.task_sets.next(head)
        done = replace(head, step=number, version=version, record=key, spent=spent, given_up=(), lead_groups=lead)
        lease.commit(replace(done, task_sets=task_sets))


def plain_use(group: Group) -> GroupUse:
    """A group as a step uses it that makes nothing of it."""
    first = group.trajectories[0]
    solved = sum(bool(member.success) for member in group.trajectories if member.valid)
    return GroupUse(
        group.number, group.key, first.attempt, group.task_id, group.task_set, 1.0, len(group.trajectories),
        group.valid_members, 0.0, 0.0, solved / max(1, group.valid_members), 0.0, 0, 0,
    )  # fmt: skip


@dataclass
class Cell:
    """A cell over a scripted engine, in this process."""

    run_store: RunStore
    params: RunParameters
    name: str = "c0"
    family: Any = FAMILY
    script: Any = solve
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    sink: RecordingSink = field(default_factory=RecordingSink)
    progress: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    engine: ScriptedEngine | None = None

    async def run(self) -> Counters:
        self.engine = ScriptedEngine(script=self.script, **self.options)
        await self.engine.start()
        try:
            return await collect(
                self.run_store,
                self.params,
                cell=self.name,
                engine=self.engine,
                renderer=RENDERER,
                family=self.family,
                sink=self.sink,
                on_progress=self.progress.append,
            )
        finally:
            await self.engine.close()


async def run_all(trainer: ToyTrainer, *cells: Cell) -> list[Counters]:
    """Trainer and cells, until all have ended; nothing of them may be left then."""
    training = asyncio.create_task(trainer.run())
    async with asyncio.timeout(WAIT_S):
        counters = await asyncio.gather(*(cell.run() for cell in cells))
        await training
    assert len(asyncio.all_tasks()) == 1
    return counters


def upload_scripted_model(store: ObjectStore, folder: Path) -> ModelSource:
    """A model directory that the scripted engine and the plain rendering need: a tokenizer and a vocabulary."""
    assert FAMILY.alphabet is not None
    tokenizer = save_character_tokenizer(FAMILY.alphabet, folder, max_length=256)
    (folder / "config.json").write_text(json.dumps({"vocab_size": tokenizer.get_vocab_size()}))
    digest = directory_digest(folder)
    prefix = keys.model_prefix(digest)
    return ModelSource(digest, prefix, upload_directory(store, prefix, folder), False)
