"""A whole run over a store in memory: real cells (scripted engines), the real trainer loop, faults in both.

What must hold afterwards is read from its objects: the ledger of every step balances, every group counts once, and
the documented DuckDB query says what was trained.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from driftline.errors import DriftlineError, EngineDied
from driftline.params import RunParameters
from driftline.records import StepRecord, Trajectory
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from tests.support.loop_thread import LoopThread
from tests.support.rollout import undecided
from tests.support.toy_run import Cell, create_run, toy_parameters
from tests.support.training import FakeGroup

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "store.md"
STEPS = 80
"""Long enough for a lease to end after the damage, on a fast machine too."""
DEADLINE_S = 120.0


class Loop(LoopThread):
    """The trainer in a thread; `stop` leaves it as a kill would: in the middle of things, without a word."""

    def __init__(self, run_store: RunStore, params: RunParameters) -> None:
        self.events: list[Any] = []
        self._stopping = False
        super().__init__(run_store, params, FakeGroup(), emit=self._emit)
        self.start()

    def _emit(self, event: Any) -> None:
        self.events.append(event)
        if self._stopping:
            raise KeyboardInterrupt

    async def stop(self) -> None:
        self._stopping = True
        await self.end(DEADLINE_S)


class Run:
    """What a run left behind."""

    def __init__(self, store: MemoryStore, runs: RunStore, events: list[Any]) -> None:
        self.store, self.runs, self.events = store, runs, events
        self.records: list[StepRecord] = runs.steps()
        self.groups = runs.new_groups()


async def play(store: MemoryStore) -> Run:
    params = toy_parameters(
        rollout={"lease_s": 2.0, "cells": 2, "episodes_in_flight": 24},
        overlap={"lead_groups": 6, "max_lag_versions": 2},
        training={"steps": STEPS},
        environment={"max_turns": 8},
    )
    runs = create_run(store, params)

    def cell(name: str) -> tuple[Cell, asyncio.Task[Any]]:
        made = Cell(RunStore(store, runs.run), params, name=name, script=undecided, options={"step_s": 0.002})
        return made, asyncio.create_task(made.run())

    async def steps(count: int) -> None:
        while runs.read_head()[0].step < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with asyncio.timeout(DEADLINE_S):
        trainer = Loop(RunStore(store, runs.run), params)
        (_, first), (second, ending) = cell("c0"), cell("c1")
        await steps(4)
        assert second.engine is not None
        second.engine.die("it was told to")
        with pytest.raises(EngineDied):
            await ending
        _, again = cell("c1")
        await steps(8)
        await trainer.stop()
        assert isinstance(trainer.failure, KeyboardInterrupt)
        successor = Loop(RunStore(store, runs.run), params)
        await steps(12)
        damage_the_next_object(store, runs, "c0")
        await asyncio.gather(first, again)
        await successor.end(DEADLINE_S)
        assert successor.failure is None or not isinstance(successor.failure, DriftlineError), successor.failure
    return Run(store, runs, trainer.events + successor.events)


def damage_the_next_object(store: MemoryStore, runs: RunStore, cell: str) -> None:
    """Spoil an object at the moment it is written: nobody has read it whole."""
    create, target = store.create, keys.trajectories(runs.run, cell, runs.next_sequence(cell) + 1)

    def spoil(key: str, body: bytes) -> Any:
        return create(key, body[: len(body) // 2] if key == target else body)

    store.create = spoil  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def run() -> Run:
    return asyncio.run(play(MemoryStore()))


def test_the_ledger_of_every_step_balances(run: Run) -> None:
    assert [record.step for record in run.records] == [*range(1, STEPS + 1)]
    for record in run.records:
        assert record.ledger is not None
        assert record.ledger.imbalance == 0, record.ledger
        assert record.metrics[metrics.LEDGER_IMBALANCE] == 0.0
    last = run.records[-1].ledger
    assert last is not None
    assert last.generated > 1000
    assert last.trained > 0
    assert last.zero_variance > 0
    assert last.lost > 0, "an object was spoilt"
    assert len(last.incarnations) == 3
    assert [event for event in run.events if event.get("type") == "LedgerImbalance"] == []
    generated = [record.ledger.generated for record in run.records if record.ledger]
    assert generated == sorted(generated)


def test_an_object_that_cannot_be_read_is_said_and_its_groups_are_played_again(run: Run) -> None:
    (spoilt,) = run.runs.read_head()[0].set_aside
    warnings = [event for event in run.events if event.get("type") == "CorruptObject"]
    assert len(warnings) == 1
    assert spoilt in warnings[0]["message"]
    assert run.records[-1].metrics[metrics.DAMAGED_OBJECTS] == 1.0
    used = sorted(use.group for record in run.records for use in record.groups)
    given_up = {give_up.group for record in run.records for give_up in record.give_ups}
    head = run.runs.read_head()[0]
    missing = set(range(max(used) + 1)) - set(used) - given_up
    assert len(used) == len(set(used)) == STEPS * 3
    assert head.spent == len(used) + len(given_up)
    assert max(t.attempt for group in run.groups for t in group.trajectories) >= 2
    assert len(missing) <= 9, "no more than the lead is open at the end"


def test_group_member_and_attempt_are_unique(run: Run) -> None:
    found = Counter(
        (t.group, t.member, t.attempt) for group in run.groups for t in group.trajectories
    )  # every object that can be read
    assert set(found.values()) == {1}


def test_the_documented_query_says_which_tasks_were_trained_at_which_lag_with_what_weight(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spoilt,) = run.runs.read_head()[0].set_aside
    prefix = keys.run_prefix(run.runs.run)
    for info in run.store.list(prefix):
        if info.key == spoilt:
            continue
        target = tmp_path / "run" / info.key.removeprefix(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(run.store.get(info.key).body)
    monkeypatch.chdir(tmp_path)
    with duckdb.connect() as connection:
        rows = connection.execute(documented_query()).fetchall()
    assert rows == expected_rows(run)
    assert {row[2] for row in rows} == {0.0, 1.0}
    assert len({row[3] for row in rows}) > 1, "some lag"


def documented_query() -> str:
    found = re.search(r"```sql\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1]


def expected_rows(run: Run) -> list[tuple[str, int, float, int, int]]:
    """(task, step, weight, lag, tokens), from the records and trajectories themselves."""
    by_place = {(group.key, group.number): group for group in run.groups}
    counts: Counter[tuple[str, int, float, int]] = Counter()
    for record in run.records:
        for use in record.groups:
            for member in by_place[use.key, use.group].trajectories:
                if member.valid:
                    for lag in lags(member, record.version_in.number):
                        counts[use.task_id, record.step, use.weight, lag] += 1
    rows = [(task, step, weight, lag, tokens) for (task, step, weight, lag), tokens in counts.items()]
    key: Callable[[Any], Any] = lambda row: (row[0], row[1], row[3])  # noqa: E731
    return sorted(rows, key=key)


def lags(member: Trajectory, version: int) -> list[int]:
    found: list[int] = []
    for index, sampled in enumerate(member.loss_mask):
        if sampled:
            held = [segment.version for segment in member.segments if segment.start <= index][-1]
            found.append(max(0, version - held))
    return found
