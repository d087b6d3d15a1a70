"""The arms of the rollout ladder that are Driftline: its collector, over a store, with a trainer that only takes.

    collector ─▶ objects in SeaweedFS ─▶ `Taker` ─▶ step record, HEAD ─▶ collector

The trainer takes a batch, waits as long as training would take, and commits the step with the version that was there
before: weights do not change, so that all arms sample the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from safetensors.torch import load_file

from benchmarks.ladder_baselines import Delivered, delivered
from benchmarks.local_run import play
from driftline.engine.protocol import Engine
from driftline.records import Group, PolicyVersion, Probe, StepRecord, StepTimes
from driftline.rollout.bootstrap import Surroundings
from driftline.store.run_store import RunStore, TrainerLease
from driftline.training.intake import POLL_S
from driftline.training.publishing import probe_ids
from driftline.weights.publisher import publish_anchor
from tests.support.toy_run import plain_use


@dataclass(slots=True)
class Taker:
    """The trainer's side of a run: what it waits for, and when."""

    run_store: RunStore
    groups: int
    """Of the run."""
    groups_a_batch: int
    train_s: float
    in_order: bool
    """Whether batches are those of the group numbers, or what is finished first (the rest is carried over)."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the cell's engine holds the version, and episodes begin."""
    members: list[Delivered] = field(default_factory=list[Delivered])
    waits_s: list[float] = field(default_factory=list[float])
    """For each batch."""
    began: float = 0.0
    ended: float = 0.0

    async def take(self, lease: TrainerLease) -> None:
        """Take all batches."""
        await self.begun.wait()
        self.began = waiting_since = time.time()
        cursor, ready = self.run_store.trajectory_cursor(), list[Group]()
        taken = 0
        while taken < self.groups:
            ready += await asyncio.to_thread(cursor.poll)
            batch = self._batch(ready, taken)
            if not batch:
                await asyncio.sleep(POLL_S)
                continue
            ready = [group for group in ready if group not in batch]
            taken += len(batch)
            self.waits_s.append(time.time() - waiting_since)
            self.members += [delivered(member) for group in batch for member in group.trajectories]
            self.ended = time.time()
            await asyncio.sleep(self.train_s)
            await asyncio.to_thread(self._commit, lease, batch, taken == self.groups)
            waiting_since = time.time()

    def _batch(self, ready: Sequence[Group], taken: int) -> list[Group]:
        size = min(self.groups_a_batch, self.groups - taken)
        wanted = sorted(ready, key=lambda group: group.number)
        if self.in_order:
            wanted = [group for group in wanted if group.number < taken + size]
        return wanted[:size] if len(wanted) >= size else []

    def _commit(self, lease: TrainerLease, batch: Sequence[Group], last: bool) -> None:
        head, now = lease.head, time.time()
        assert head.version is not None
        key = self.run_store.write_step(
            StepRecord(
                run=self.run_store.run, step=head.step + 1, epoch=lease.epoch,
                version_in=head.version, version_out=head.version,
                groups=tuple(plain_use(group) for group in batch), give_ups=(), metrics={}, time_to_batch_s={},
                times=StepTimes(now, now, now, now, now, now), previous=head.record,
            )
        )  # fmt: skip
        spent, state = head.spent + len(batch), "finished" if last else "running"
        # No group beyond the trace is begun, which would play a task a second time.
        lead = max(0, min(head.lead_groups, self.groups - spent - self.groups_a_batch))
        lease.commit(replace(head, step=head.step + 1, record=key, spent=spent, lead_groups=lead, state=state))


async def collected(found: Surroundings, engine: Engine, taker: Taker) -> None:
    """Collect a run of which `taker` is the trainer."""
    run_store = found.run_store
    lease = await asyncio.to_thread(run_store.take_epoch)
    version = PolicyVersion(0, lease.epoch)
    await publish_base(found, run_store, engine, version)
    await asyncio.to_thread(lease.commit, replace(lease.head, version=version))
    async with asyncio.TaskGroup() as group:
        group.create_task(taker.take(lease))
        group.create_task(play(found, engine, lambda event: taker.begun.set()))


async def publish_base(found: Surroundings, run_store: RunStore, engine: Engine, version: PolicyVersion) -> None:
    """Publish the weights that the engine has started from, proved by its own log-probabilities."""
    weights = load_file(found.model_dir / "model.safetensors")
    vocabulary = weights["model.embed_tokens.weight"].shape[0]
    ids = probe_ids(0, vocabulary, found.parameters.engine.max_model_len)
    probe = Probe(ids, await engine.score(ids), "float32")
    await asyncio.to_thread(
        publish_anchor, run_store, weights.items(), run=run_store.run, version=version, dtype="float32", probe=probe
    )
