"""What the loop makes of measured divergence: the next lead, its divisions, and their cause."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from driftline.measured import NOTHING
from driftline.records import encode
from driftline.tracking import metrics
from driftline.training import intake, loop, scoring, steering
from driftline.training.batch import TrainingBatch
from driftline.training.ledger import TokenBook
from driftline.training.protocol import StepOutcome
from driftline.training.statistics import StepStatistics
from tests.support.trainer_bench import Bench, eager_cell
from tests.support.training import FakeGroup, parameters


class Drifting(FakeGroup):
    """A trainer group whose k3 grows with the square of the batch's lag, 1e-4 nats at one version."""

    def train(self, batch: TrainingBatch) -> StepOutcome:
        told = super().train(batch)
        lag = batch.lag_S[batch.sampled_S].double()
        by_lag = {
            int(n): replace(NOTHING, tokens=500, k3=1e-4 * float(n) ** 2) for n in sorted({int(n) for n in lag})
        }
        found = replace(
            told.statistics,
            divergence=replace(NOTHING, tokens=500, k3=1e-4 * float(lag.square().mean())),
            by_lag=by_lag,
            by_sequence=(replace(NOTHING, tokens=2, k3=1e-9),) * batch.sequences,
        )
        return replace(self.outcome, statistics=found)


class SteadyBench(Bench):
    """Its cell works at each commit too, and not only while the trainer waits."""

    def emit(self, event: Any) -> None:
        super().emit(event)
        if event["event"] == "progress":
            self.cell(self)


def steered(steps: int = 60, **overlap: Any) -> Bench:
    limits = {"controller": "divergence", "max_lag_versions": 8, "budget_k3_nats": 1e-3, **overlap}
    bench = SteadyBench(parameters(overlap=limits, training={"steps": steps}), eager_cell)
    bench.group = Drifting()
    return bench


def test_the_controller_sets_the_lead_in_the_swap_that_commits_the_step():
    """Its budget holds a lag of 2.6 to 3.2 versions: leads of 6 groups, of 2 a batch."""
    bench = steered()
    bench.loop().run()
    records = bench.run_store.steps()
    assert [record.lead_groups for record in records[:6]] == [2] * 6
    assert {record.lead_groups for record in records[-8:]} == {6}
    assert {record.lead_why for record in records[-8:]} == {"within budget"}
    fixed = steered(controller="fixed")
    fixed.loop().run()
    assert bench.store.written.count("runs/r/HEAD") == fixed.store.written.count("runs/r/HEAD"), "no swap of its own"
    assert max(use.lag_max for record in records for use in record.groups) <= 4


def test_a_resumed_trainer_sets_the_leads_that_the_first_one_would():
    whole = steered()
    whole.loop().run()
    parts = steered()
    for until in (7, 16, 60):
        parts.params = steered(until).params
        parts.loop().run()
        head, etag = parts.run_store.read_head()
        parts.store.swap("runs/r/HEAD", encode(replace(head, state="running")), etag)
    assert len(parts.run_store.steps()) == 60
    for mine, other in zip(parts.run_store.steps(), whole.run_store.steps(), strict=True):
        assert (mine.lead_groups, mine.lead_why) == (other.lead_groups, other.lead_why)


def test_a_record_divides_its_divergence_and_names_the_cause():
    bench = steered(2)
    bench.loop().run()
    record = bench.run_store.steps()[0]
    assert list(record.by_lag) == [0]
    assert record.by_environment["pointer_chase/v1"].tokens == 2 * sum(use.valid_members for use in record.groups)
    assert record.floor_by_cell["c0"].k3 == pytest.approx(1e-9) == record.metrics[metrics.FLOOR_K3]
    assert record.diagnosis is not None
    assert record.diagnosis.cause == "healthy"
    assert [event for event in bench.events if event["event"] == "warning"] == []


def test_a_record_has_quantiles_over_its_members():
    class Uneven(Drifting):
        def train(self, batch: TrainingBatch) -> StepOutcome:
            told = super().train(batch)
            k3 = [0.0] * (batch.sequences - 1) + [0.8]
            members = tuple(replace(NOTHING, tokens=2, k1=value, k3=value) for value in k3)
            return replace(told, statistics=replace(told.statistics, by_sequence=members))

    bench = steered(1)
    bench.group = Uneven()
    bench.loop().run()
    (record,) = bench.run_store.steps()
    found = [record.metrics[name] for name in metrics.MEMBER_K3.values()]
    assert found == pytest.approx([0.0, 0.3 * 0.8, 0.93 * 0.8]), "of eight members"
    low = record.metrics["importance/member_sequence_ratio_p01"]
    assert low == pytest.approx(1 - 0.93 * (1 - math.exp(-1.6)))
    assert record.metrics["importance/member_geometric_ratio_p01"] == pytest.approx(1 - 0.93 * (1 - math.exp(-0.8)))
    assert record.metrics["importance/member_geometric_ratio_p50"] == 1.0


def test_a_record_says_what_steering_took_and_no_more():
    """Slow trainers, stores and cells are no part of it; what the trainer's ranks measured on the way is."""

    now = [0.0]

    class Slow(Drifting):
        def train(self, batch: TrainingBatch) -> StepOutcome:
            now[0] += 100.0
            return replace(super().train(batch), measuring_s=7.0)

        def measure(self, batch: TrainingBatch) -> StepStatistics:
            now[0] += 100.0
            return super().measure(batch)

        def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
            now[0] += 100.0
            return super().full_tensors()

    bench = steered(3)
    bench.group = Slow()
    running = bench.loop()
    running._stopwatch._monotonic = lambda: now[0]  # pyright: ignore[reportPrivateUsage]
    running.run()
    assert now[0] > 0.0
    assert [record.metrics[metrics.STEERING_SECONDS] for record in bench.run_store.steps()] == [7.0] * 3


@pytest.mark.parametrize("part", ["judge", "diagnose", "batch_divergence", "book", "weights"])
def test_every_part_of_steering_is_counted(part: str, monkeypatch: pytest.MonkeyPatch):
    target, name = {
        "judge": (intake, "judge"),
        "diagnose": (steering, "diagnose"),
        "batch_divergence": (loop, "batch_divergence"),
        "book": (TokenBook, "ledger"),
        "weights": (scoring, "group_score"),
    }[part]
    real = getattr(target, name)

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.05)
        return real(*given, **named)

    monkeypatch.setattr(target, name, slow)
    bench = steered(2)
    bench.loop().run()
    assert min(record.metrics[metrics.STEERING_SECONDS] for record in bench.run_store.steps()) >= 0.05


def test_a_change_of_the_cause_is_told_once():
    bench = steered(30, controller="fixed", lead_groups=8, max_lag_versions=4)
    bench.loop().run()
    told = [event for event in bench.events if event["event"] == "warning"]
    assert [(event["type"], event["message"].split(":")[1]) for event in told] == [("Diagnosis", " staleness")]
    assert "lower the lead" in told[0]["message"]
    assert bench.run_store.steps()[-1].metrics[metrics.CAUSE] == 2
    assert bench.run_store.steps()[-1].lead_why == ""
