"""A run of the real loop and trainer on what a real vLLM engine samples, in one process; faults can be planted.

    TrainingLoop (a thread) ──"I wait"──▶ Cells.work ──▶ engine.update, engine.generate ──▶ groups, offset reports

One warm engine plays two cells. Half of a batch is begun ahead, under the version before, and goes on sampling while
the next version is taken up; the other half is sampled with the weights that the batch is trained from.
"""

# pyright: basic
from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from driftline.engine.protocol import Generation, GenerationRequest
from driftline.engine.vllm_engine import VllmEngine
from driftline.params import RankSettings, RunParameters, adopt_environment
from driftline.records import EpisodeSeconds, Group, OffsetReport, PolicyVersion, Segment, StepRecord, Trajectory
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink
from driftline.training.environment_variables import training_environment
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import VOCABULARY, save, tiny_llama
from tests.support.training import GroupStream, new_run, parameters
from tests.support.vllm import engine_parameters, running_engine

CELLS = ("c0", "c1")
GROUPS, MEMBERS = 4, 4
PROMPT, SAMPLED = 6, 32
LETTERS, FIRST_PIECE = "abcdefgh", 3
PIECES = [*LETTERS, *("".join(pair) for pair in itertools.islice(itertools.product(LETTERS, repeat=2), 32))]
"""Texts of the token ids from `FIRST_PIECE` on: letters, and half of their pairs: a text has several forms."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run; the defaults are nothing."""

    engine_temperature: float | None = None
    """What the engine samples at, where that is not the run's temperature."""
    engine_dtype: str = "float32"
    """Of the engine that really runs; the run's parameters say float32."""
    stuck_cell: str = ""
    """Its engine goes on with version 1, and says that it has taken up the next ones."""
    lead_batches: int | None = None
    """Whole batches sampled ahead, in place of half of one."""
    in_flight: bool = False
    """No fault: what is sampled ahead begins just before an update, and so is surely in flight at it."""
    retokenised: bool = False
    """What was sampled around the seam of two turns travels as text, and comes back as other tokens."""


HEALTHY = Fault()


def run_parameters(fault: Fault, steps: int, **sections: dict[str, Any]) -> RunParameters:
    """The parameters of a run, the default limits of the diagnosis among them."""
    batches = fault.lead_batches
    base = {
        "rollout": {"groups_per_step": GROUPS, "group_size": MEMBERS, "cells": len(CELLS)},
        "overlap": {"lead_groups": GROUPS * (batches or 1), "max_lag_versions": max(8, (batches or 0) + 1)},
        "training": {"steps": steps, "micro_batch_tokens": 2048, "learning_rate": 3e-4},
        "checkpoint": {"every_steps": 10_000},
        "limits": {"batch_deadline_s": 120.0},
    }
    return parameters(**{name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


class Cells:
    """Two cells over one engine, which work when the trainer waits for them."""

    def __init__(self, run_store: RunStore, params: RunParameters, engine: VllmEngine, fault: Fault, seed: int):
        self._run_store, self._params, self._engine, self._fault = run_store, params, engine, fault
        self._seed = seed
        self._streams = {cell: GroupStream(run_store, cell) for cell in CELLS}
        self._ahead: list[asyncio.Task[Group]] = []
        self._worked: PolicyVersion | None = None
        self._begun = 0
        self._probes = dict.fromkeys(CELLS, 0.0)
        self._names = itertools.count()

    async def work(self) -> None:
        """Take up a version that is new, and finish the groups of the batch to be trained from it."""
        head, _ = await asyncio.to_thread(self._run_store.read_head)
        if head.version is None or head.version == self._worked:
            return
        self._worked = head.version
        number = head.version.number
        if self._fault.stuck_cell:
            groups = await self._with_a_stuck_cell(head.version)
        else:
            if self._fault.in_flight and number > 0:
                self._begin_ahead()
                await self._until_in_flight()
            await self._update(head.version, CELLS)
            if self._fault.lead_batches is not None:
                last = (number + self._fault.lead_batches + 1) * GROUPS
                groups = await self._finish(range(self._begun, last))
            else:
                fresh = GROUPS - len(self._ahead)
                groups = [*await self._finish(range(self._begun, self._begun + fresh))]
                groups += await self._take_ahead()
        await asyncio.to_thread(self._deliver, groups, number)
        if self._fault.lead_batches is None and not self._fault.stuck_cell and not self._fault.in_flight:
            self._begin_ahead()

    async def end(self) -> None:
        """Await what was begun ahead; the engine is free then."""
        await self._take_ahead()

    def _begin_ahead(self) -> None:
        numbers = range(self._begun, self._begun + GROUPS // 2)
        self._begun = numbers.stop
        self._ahead = [asyncio.create_task(self._group(number)) for number in numbers]

    async def _until_in_flight(self) -> None:
        """Wait until a few tokens of what was begun are sampled, and most are not."""
        few = len(self._ahead) * MEMBERS * SAMPLED // 8
        async with asyncio.timeout(60.0):
            while self._engine.status().in_flight_tokens < few:  # noqa: ASYNC110 (the engine offers no event)
                await asyncio.sleep(0.002)

    async def _take_ahead(self) -> list[Group]:
        ahead, self._ahead = self._ahead, []
        return [*await asyncio.gather(*ahead)]

    async def _finish(self, numbers: range) -> list[Group]:
        self._begun = numbers.stop
        return [*await asyncio.gather(*(self._group(number) for number in numbers))]

    async def _with_a_stuck_cell(self, version: PolicyVersion) -> list[Group]:
        """The engine plays the stuck cell with version 1, whatever it says, and then the other one."""
        numbers = range(self._begun, self._begun + GROUPS)
        self._begun = numbers.stop
        stuck = [n for n in numbers if self._cell(n) == self._fault.stuck_cell]
        if version.number >= 1:
            await self._update(PolicyVersion(1, version.epoch), [self._fault.stuck_cell])
            late = await asyncio.gather(*(self._group(number) for number in stuck))
            late = [_stamped(group, version.number) for group in late]
        else:
            await self._update(version, CELLS)
            late = [*await asyncio.gather(*(self._group(number) for number in stuck))]
        await self._update(version, [cell for cell in CELLS if cell != self._fault.stuck_cell])
        return [*late, *await asyncio.gather(*(self._group(n) for n in numbers if n not in stuck))]

    async def _update(self, version: PolicyVersion, cells: Sequence[str]) -> None:
        manifest = await asyncio.to_thread(self._run_store.read_manifest, version)
        report = await self._engine.update(manifest)
        if report.applied:
            self._probes |= dict.fromkeys(cells, report.probe_error)

    def _deliver(self, groups: Sequence[Group], version: int) -> None:
        for cell in CELLS:
            report = OffsetReport(
                self._run_store.run, cell, "i1", version, version, time.time(), time.time(), 0, 0, 0, 0.0,
                probe_difference_nats=self._probes[cell],
            )  # fmt: skip
            self._run_store.write_offset(report)
        for cell in CELLS:
            self._streams[cell].write(*(group for group in groups if self._cell(group.number) == cell))

    def _cell(self, group: int) -> str:
        return CELLS[group % len(CELLS)]

    async def _group(self, number: int) -> Group:
        members = await asyncio.gather(*(self._member(number, member) for member in range(MEMBERS)))
        return Group(number, f"task-{number}", "v1", tuple(members))

    async def _member(self, group: int, member: int) -> Trajectory:
        rng = Random(f"{self._seed}:{group}")
        prompt = tuple(rng.randrange(FIRST_PIECE, VOCABULARY) for _ in range(PROMPT))
        temperature = self._fault.engine_temperature or self._params.rollout.temperature
        seed = Random(f"{self._seed}:{group}:{member}").getrandbits(32)
        sampled = await self._engine.generate(
            GenerationRequest(f"g{next(self._names)}", prompt, SAMPLED, (), temperature, seed)
        )
        if self._fault.retokenised:
            sampled = retokenised(sampled)
        return self._trajectory(group, member, prompt, sampled)

    def _trajectory(self, group: int, member: int, prompt: tuple[int, ...], sampled: Generation) -> Trajectory:
        even = sum(token % 2 == 0 for token in sampled.token_ids) / len(sampled.token_ids)
        return Trajectory(
            run=self._run_store.run, group=group, member=member, attempt=1, cell=self._cell(group),
            task_id=f"task-{group}", task_set="v1", environment="even/v1", token_ids=prompt + sampled.token_ids,
            loss_mask=(False,) * PROMPT + (True,) * len(sampled.token_ids),
            logprobs=(0.0,) * PROMPT + sampled.logprobs,
            segments=tuple(Segment(PROMPT + one.start, one.version) for one in sampled.segments),
            turns=1, reward=even, success=None, status="ok", reason="", seconds=EpisodeSeconds(),
            started_unix=time.time(), finished_unix=time.time(),
        )  # fmt: skip


def retokenised(sampled: Generation) -> Generation:
    """Decode four tokens in the middle to text, and encode it again, as a client does that speaks in text.

    The log-probabilities stay as they are, token by token, since nobody knows those of tokens that were not sampled.
    """
    middle = len(sampled.token_ids) // 2
    begin, end = middle - 2, middle + 2
    text = "".join(PIECES[max(0, token - FIRST_PIECE)] for token in sampled.token_ids[begin:end])
    seam = encode_text(text)[: end - begin]
    gone = end - begin - len(seam)
    return replace(
        sampled,
        token_ids=sampled.token_ids[:begin] + seam + sampled.token_ids[end:],
        logprobs=sampled.logprobs[: begin + len(seam)] + sampled.logprobs[end:],
        segments=tuple(replace(one, start=one.start - gone * (one.start >= end)) for one in sampled.segments),
    )


def encode_text(text: str) -> tuple[int, ...]:
    """The longest piece first, as tokenizers do."""
    ids: list[int] = []
    while text:
        size = 2 if text[:2] in PIECES[len(LETTERS) :] else 1
        ids.append(FIRST_PIECE + PIECES.index(text[:size]))
        text = text[size:]
    return tuple(ids)


def _stamped(group: Group, version: int) -> Group:
    """As by an engine that believes to hold a version."""
    return replace(
        group, trajectories=tuple(replace(one, segments=(Segment(PROMPT, version),)) for one in group.trajectories)
    )


class Laboratory:
    """A store, a warm engine and a process group of one rank, for many short runs."""

    def __init__(self, seaweed: Seaweed, engine: VllmEngine, folder: Path) -> None:
        self._store, self.engine, self._folder = seaweed.store(), engine, folder

    async def run(self, name: str, params: RunParameters, fault: Fault, seed: int) -> list[StepRecord]:
        """One run from a policy of its own to its end; returns its step records."""
        from driftline.training.loop import TrainingLoop
        from driftline.training.ranks import TrainerGroup
        from driftline.training.trainer import Trainer

        model_dir = save(tiny_llama(seed), self._folder / name)
        run_store = new_run(self._store, name, params)
        await self.engine.serve_run(name)
        cells = Cells(run_store, params, self.engine, fault, seed)
        here = asyncio.get_running_loop()

        def work() -> None:
            asyncio.run_coroutine_threadsafe(cells.work(), here).result()

        def wait(seconds: float) -> None:
            work()
            time.sleep(0.01)

        def told(event: Mapping[str, Any]) -> None:
            # A lead of many batches is kept up only by cells that work before the trainer has used it up.
            if event["event"] == "progress" and event["step"] < event["steps"]:
                work()

        def train() -> None:
            group = TrainerGroup(Trainer(params, model_dir), self._folder / "scratch")
            lease = run_store.take_epoch()
            loop = TrainingLoop(
                run_store, lease, params, group, NullSink(), scratch=self._folder, emit=told, sleep=wait
            )
            loop.run()

        try:
            await asyncio.to_thread(train)
        finally:
            await cells.end()
            shutil.rmtree(model_dir)
        return run_store.steps()


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """Be a process group of one rank."""
    adopt_environment(training_environment(RunParameters.model_validate({}), os.environ))
    from driftline.training.lean_imports import import_transformers

    import_transformers()
    from driftline.training.distributed import join, leave

    join(RankSettings.model_validate({}), 600.0)
    try:
        yield
    finally:
        leave()


@contextlib.asynccontextmanager
async def laboratory(seaweed: Seaweed, folder: Path, dtype: str = "float32") -> AsyncIterator[Laboratory]:
    """Start the engine, and end it."""
    model_dir = save(tiny_llama(0), folder / "model")
    params = engine_parameters(max_model_len=128, max_num_seqs=64, dtype=dtype)
    async with running_engine(params, model_dir, "none", seaweed.settings) as engine:
        yield Laboratory(seaweed, engine, folder)
