"""Where the time of a whole run went: a real cell (scripted engine) and the real trainer loop, by the wall clock.

The wall clock that the parts are held against is the test's own: from the manifest of a version to the moment at
which the next batch is handed over.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from driftline.records import Span, StepRecord
from driftline.store.memory import MemoryStore
from driftline.store.protocol import WriteResult
from driftline.store.run_store import RunStore
from driftline.tracking.attributed import Attributed, build
from driftline.tracking.attribution import rollout_idle, step_parts
from driftline.tracking.intervals import usage
from driftline.tracking.report import build_report, render
from driftline.training.batch import TrainingBatch
from driftline.training.intake import ReadyBatch
from driftline.training.loop import TrainingLoop
from driftline.training.protocol import StepOutcome
from driftline.training.statistics import StepStatistics
from tests.support.loop_thread import LoopThread
from tests.support.toy_run import Cell, RecordingSink, create_run, toy_parameters
from tests.support.training import FakeGroup

STEPS = 5
DEADLINE_S = 120.0


class Watch(MemoryStore):
    """Notes when each manifest was written, in Unix seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[float] = []

    def create(self, key: str, body: bytes) -> WriteResult:
        written = super().create(key, body)
        if key.endswith("manifest.json") and "/policy/" in key:
            self.published.append(time.time())
        return written


class SlowGroup(FakeGroup):
    """Takes its time."""

    def __init__(self, train_s: float, measure_s: float) -> None:
        super().__init__()
        self._train_s, self._measure_s = train_s, measure_s

    def train(self, batch: TrainingBatch) -> StepOutcome:
        time.sleep(self._train_s)
        return super().train(batch)

    def measure(self, batch: TrainingBatch) -> StepStatistics:
        time.sleep(self._measure_s)
        return super().measure(batch)


def note_batches(loop: TrainingLoop) -> list[float]:
    """When each batch is handed over from now on, in Unix seconds."""
    noted: list[float] = []
    intake = loop._intake  # pyright: ignore[reportPrivateUsage]
    next_batch = intake.next_batch

    def noting() -> ReadyBatch:
        found = next_batch()
        noted.append(time.time())
        return found

    intake.next_batch = noting  # type: ignore[method-assign]
    return noted


@dataclass(frozen=True)
class Run:
    """What a run left behind, and when the test saw it happen."""

    records: list[StepRecord]
    spans: list[Span]
    attributed: Attributed
    waits: list[float]
    """Of each step but the first: from its version's manifest to the next batch."""
    logged: dict[str, float]
    """The last value of each metric."""
    report: str


async def play(*, step_s: float, train_s: float, measure_s: float, lead: int) -> Run:
    params = toy_parameters(training={"steps": STEPS}, overlap={"lead_groups": lead}, environment={"max_turns": 8})
    store = Watch()
    runs = create_run(store, params)
    group, sink = SlowGroup(train_s, measure_s), RecordingSink()
    trainer = LoopThread(RunStore(store, runs.run), params, group, sink)
    ready = note_batches(trainer.loop)
    trainer.start()
    async with asyncio.timeout(DEADLINE_S):
        await Cell(runs, params, options={"step_s": step_s}).run()
        await trainer.end(DEADLINE_S)
    assert trainer.failure is None
    records, spans = runs.steps(), runs.spans()
    found = build(records, spans, runs.describe().parameters)
    assert found is not None
    return Run(
        records,
        spans,
        found,
        [end - published for published, end in zip(store.published[1:-1], ready[1:], strict=True)],
        {name: value for name, value, _ in sink.points},
        render(build_report(store, runs.run)),
    )


@pytest.fixture(scope="module")
def slow_engine() -> Run:
    return asyncio.run(play(step_s=0.02, train_s=0.02, measure_s=0.0, lead=0))


@pytest.fixture(scope="module")
def slow_trainer() -> Run:
    return asyncio.run(play(step_s=0.001, train_s=1.5, measure_s=0.3, lead=0))


@pytest.fixture(scope="module", params=["slow_engine", "slow_trainer"])
def run(request: Any) -> Run:
    return request.getfixturevalue(request.param)


def test_the_parts_add_up_to_the_time_to_a_batch_within_2_percent(run: Run) -> None:
    told = [math.fsum(record.time_to_batch_s.values()) for record in run.records[1:]]
    assert math.fsum(told) == pytest.approx(math.fsum(run.waits), rel=0.02)
    for mine, its in zip(run.waits, told, strict=True):
        assert its == pytest.approx(mine, rel=0.02, abs=0.02)


def test_the_parts_of_all_steps_add_up_to_the_wall_clock(run: Run) -> None:
    for record in run.records:
        wall_s = record.times.committed - record.times.previous_commit
        assert math.fsum(step_parts(record).values()) == pytest.approx(wall_s, rel=1e-6)
    assert all(a.times.committed == b.times.previous_commit for a, b in pairwise(run.records)), "no gap between steps"


def test_idle_and_busy_seconds_of_the_cell_add_up_to_the_wall_clock(run: Run) -> None:
    window = (run.records[1].times.previous_commit, run.records[-1].times.committed)
    idle = rollout_idle(run.spans, window)
    assert idle is not None
    busy = usage([(s.start_unix, s.end_unix) for s in run.spans if s.lane == "rollout"], *window)
    assert math.fsum(idle.values()) == pytest.approx(busy.idle_s, rel=0.02)
    assert idle["other"] < 0.1 * busy.wall_s, "what nothing was recorded for is little"


def test_a_slow_engine_bounds_its_run(slow_engine: Run) -> None:
    verdict = slow_engine.attributed.verdict
    assert verdict is not None
    assert (verdict.bound, verdict.part) == ("engine", "decode"), verdict
    assert "bound by" in slow_engine.report
    assert slow_engine.logged["bound/verdict"] == 0
    assert slow_engine.logged["bound/engine_share"] > 0.5


def test_a_slow_trainer_bounds_its_run_and_scoring_is_not_publishing(slow_trainer: Run) -> None:
    found, verdict = slow_trainer.attributed, slow_trainer.attributed.verdict
    assert verdict is not None
    assert (verdict.bound, verdict.part) == ("trainer", "train"), verdict
    assert verdict.changes[0].startswith("overlap.lead_groups: 0 is synchronous")
    for record in slow_trainer.records:
        assert record.time_to_batch_s["admission"] > 0.25, "the batch was scored after its last episode's end"
    assert found.found.step_s["publish"] < found.found.step_s["admission"]
    idle = found.found.rollout_idle_s
    assert idle is not None
    assert idle["trainer"] > 0.8 * STEPS * 1.5
