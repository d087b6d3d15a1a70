"""What overlapping gained, by hand-made timelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.records import GroupUse, PolicyVersion, Span, StepRecord, StepTimes
from driftline.tracking import metrics
from tasks import benchmark


def parameters(**sections: Any) -> RunParameters:
    return RunParameters.model_validate(sections)


def use(group: int) -> GroupUse:
    return GroupUse(group, "k", 1, f"t{group}", "v", 1.0, 8, 8, 0.5, 0.1, 0.5, 1.0, 1, 100)


def record(step: int, start: float, end: float, train: tuple[float, float]) -> StepRecord:
    return StepRecord(
        run="r1",
        step=step,
        epoch=1,
        version_in=PolicyVersion(step - 1, 1),
        version_out=PolicyVersion(step, 1),
        groups=(use(2 * step), use(2 * step + 1)),
        give_ups=(),
        metrics={metrics.K3: 0.01, metrics.REWARD_MEAN: 0.1 * step, metrics.ESS_FRACTION: 0.9},
        time_to_batch_s={},
        times=StepTimes(start, train[0], *train, end, end),
        previous=None,
    )


def rollout(start: float, end: float) -> Span:
    return Span("rollout", "episodes", start, end, 0)


def synchronous() -> benchmark.Figures:
    """A warm-up step of 10 s, then steps of 2 s rollout, 1 s training, 0.5 s of anything else."""
    records = [record(1, 0, 10, (8, 9))]
    spans = [rollout(0, 8)]
    for step in range(2, 5):
        start = 10 + 3.5 * (step - 2)
        records.append(record(step, start, start + 3.5, (start + 2, start + 3)))
        spans.append(rollout(start, start + 2))
    return benchmark.measure(parameters(overlap={"lead_groups": 0}), records, spans, skip=1)


def overlapped() -> benchmark.Figures:
    """Steps of 2.1 s in which rollout never rests."""
    records = [record(step, 2.1 * step, 2.1 * (step + 1), (2.1 * step, 2.1 * step + 1)) for step in range(1, 5)]
    return benchmark.measure(parameters(overlap={"lead_groups": 16}), records, [rollout(0, 100)], skip=1)


def test_a_runs_figures_leave_out_its_start():
    found = synchronous()
    assert (found.steps, found.episodes, found.lead_groups) == (3, 3 * 2 * 8, 0)
    assert (found.step_s, found.rollout_s, found.training_s) == pytest.approx((3.5, 2.0, 1.0))
    assert (found.idle_share_rollout, found.idle_share_train) == pytest.approx((1.5 / 3.5, 2.5 / 3.5))
    assert (found.k3_nats, found.reward_first, found.reward_last) == pytest.approx((0.01, 0.2, 0.4))


def test_a_pair_is_held_against_what_its_split_allows():
    pair = benchmark.Pair(synchronous(), overlapped())
    assert pair.ratio == pytest.approx(2.1 / 3.5)
    assert pair.bound == pytest.approx(2 / 3)
    assert pair.overlap_efficiency == pytest.approx(2 / 2.1)


def test_the_summary_is_the_median_over_pairs():
    slow = benchmark.Pair(synchronous(), synchronous())
    good = benchmark.Pair(synchronous(), overlapped())
    found = benchmark.to_dict([good, slow, good])
    assert found["ratio"] == pytest.approx(0.6)
    assert found["ratio_over_bound"] == pytest.approx(0.9)
    table = benchmark.to_markdown([good])
    assert (
        "| 1 overlapped | 2.10 s | 2.10 s | 1.00 s | 0.00 / 0.52 | - / - s | 0.01 nats | 1.00 | 0.20 -> 0.40 |"
        in table
    )


def test_what_the_pipeline_adds_is_held_against_the_work_measured_alone():
    assert benchmark.Pair(synchronous(), overlapped()).pipeline_overhead_s == pytest.approx(0.1)


def test_synchronous_runs_that_differ_in_a_task_or_a_reward_are_told_of():
    pair = benchmark.Pair(synchronous(), overlapped())
    other = replace(pair.synchronous, reward_means=(0.1, 0.2, 0.3, 0.5))
    moved = replace(pair.synchronous, tasks=pair.synchronous.tasks[::-1][:-1])
    assert benchmark.to_dict([pair])["synchronous_runs_agree"] is None
    assert benchmark.to_dict([pair, pair])["synchronous_runs_agree"] is True
    assert benchmark.to_dict([pair, replace(pair, synchronous=other)])["synchronous_runs_agree"] is False
    assert benchmark.to_dict([pair, replace(pair, synchronous=moved)])["synchronous_runs_agree"] is False
    assert "although their seed is the same" in benchmark.to_markdown([pair, replace(pair, synchronous=other)])


def test_too_few_steps_are_refused():
    with pytest.raises(ConfigurationError, match="too few after skipping 3"):
        benchmark.measure(parameters(), [record(1, 0, 1, (0, 1))], [rollout(0, 1)], skip=3)


def test_the_variants_differ_in_their_lead_alone():
    first, second = benchmark.variants(parameters(seed=3), steps=10, cpus=(0, 1))
    assert (first.overlap.lead_groups, second.overlap.lead_groups) == (0, 16)
    assert (first.engine.cpus, first.training.cpus, first.training.steps, first.seed) == ((0,), (1,), 10, 3)
    same = first.model_copy(update={"overlap": second.overlap})
    assert same == second


def test_a_synchronous_request_is_overlapped_by_one_batch():
    _, second = benchmark.variants(parameters(overlap={"lead_groups": 0}), steps=10, cpus=(0, 1))
    assert second.overlap.lead_groups == second.rollout.groups_per_step


def test_both_runs_of_a_pair_keep_their_lead():
    """The controller would deepen the synchronous one."""
    params = RunParameters.model_validate(
        {"overlap": {"controller": "divergence", "lowest_groups": 2, "highest_groups": 32, "max_lag_versions": 9}}
    )
    for found in benchmark.variants(params, steps=4, cpus=(0, 1)):
        assert (found.overlap.controller, found.overlap.max_lag_versions) == ("fixed", 9)
