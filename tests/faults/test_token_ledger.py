"""The token ledger over a real store, with cells that are processes of their own and are killed without a word."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from driftline.accounts import KILLED
from driftline.records import TokenLedger
from driftline.store.client import S3Store
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink
from driftline.training.batch import TrainingBatch
from driftline.training.loop import TrainingLoop
from driftline.training.protocol import StepOutcome
from tests.faults.test_rollout_cell import Child, child
from tests.support.seaweed import Seaweed
from tests.support.toy_run import create_run, toy_parameters, upload_scripted_model
from tests.support.training import FakeGroup

WAIT_S = 240.0
STEPS = 30


class PacedGroup(FakeGroup):
    """Takes no more than `allowed` steps."""

    allowed = 5

    def train(self, batch: TrainingBatch) -> StepOutcome:
        while len(self.batches) >= self.allowed:
            time.sleep(0.01)
        return super().train(batch)


def incarnations(runs: RunStore, cell: str) -> set[str]:
    return {report.incarnation for report in runs.offsets() if report.cell == cell}


async def test_the_ledger_balances_when_cells_are_killed(seaweed: Seaweed, s3_store: S3Store, tmp_path: Path) -> None:
    params = toy_parameters(
        environment={"max_turns": 6},
        rollout={"lease_s": 2.0, "cells": 2},
        overlap={"lead_groups": 6},
        training={"steps": STEPS},
    )
    model = upload_scripted_model(s3_store, tmp_path / "made")
    runs = create_run(s3_store, params, run=f"ledger-{uuid.uuid4().hex[:8]}", model=model)
    events: list[Any] = []
    group = PacedGroup()
    loop = TrainingLoop(
        runs, runs.take_epoch(), params, group, NullSink(), scratch=tmp_path / "scratch", emit=events.append
    )
    training = threading.Thread(target=loop.run)
    training.start()

    async def steps(count: int) -> None:
        while (await asyncio.to_thread(runs.read_head))[0].step < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def progress(cell: Child) -> None:
        while not any(event["event"] == "progress" for event in cell.events):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    seen: set[str] = set()

    async def reported() -> None:
        """Wait for a new incarnation's first word: without one, nobody would know of it after its end."""
        while not (new := (await asyncio.to_thread(incarnations, runs, "c1")) - seen):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        seen.update(new)

    def cell(name: str) -> Any:
        return child(seaweed, tmp_path, "cell", "--run", runs.run, "--cell", name)

    async with asyncio.timeout(WAIT_S):
        async with cell("c0") as lasting:
            reading = asyncio.create_task(lasting.read())
            for count in (4, 10):
                async with cell("c1") as victim:
                    heard = asyncio.create_task(victim.read())
                    await progress(victim)
                    await reported()
                    group.allowed = count + 1
                    await steps(count)
                    victim.process.kill()
                    assert await heard == -9
            async with cell("c1") as third:
                heard = asyncio.create_task(third.read())
                await progress(third)
                group.allowed = STEPS
                assert await heard == 0
            assert await reading == 0
        await asyncio.to_thread(training.join)
    check([record.ledger for record in RunStore(s3_store, runs.run).steps()], runs)
    warned = {event["type"] for event in events if event["event"] == "warning"}
    assert warned <= {"Bottleneck", "TimeToBatchRegressed"}, "of its pace at most"


def check(ledgers: list[TokenLedger | None], runs: RunStore) -> None:
    assert len(ledgers) == STEPS
    found = [ledger for ledger in ledgers if ledger is not None]
    assert [ledger.imbalance for ledger in found] == [0] * STEPS
    last = found[-1]
    ended = [known for known in last.incarnations if known.ended]
    assert {known.account.cell for known in ended} == {"c1"}
    assert len(ended) == 2
    assert last.cancelled_by.get(KILLED, 0) + last.lost == sum(known.account.in_flight for known in ended)
    for known in ended:
        assert known.lost <= max(0, known.account.generated - known.heartbeat)
    final = runs.offset("c1")
    assert final is not None
    assert len(final.earlier) == 2, "the killed ones are not forgotten"
    assert final.account is not None
    assert final.account.imbalance == 0
    assert final.account.in_flight == 0
