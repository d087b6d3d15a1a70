"""Admission in the trainer's loop: who is scored, dropped, down-weighted and replaced, and what is on record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from driftline.errors import LogprobsNotFinite
from driftline.records import Group
from driftline.tracking import metrics
from driftline.training.resume import batch_of_record
from tests.support.admission import (
    CURRENT,
    FAR,
    LESS_FAR,
    LIMITS,
    bench_of,
    ledger_of,
    once,
    the_step,
    with_logprobs,
)
from tests.support.trainer_bench import Bench
from tests.support.training import OPEN, FakeGroup, group, parameters, trajectory


def test_a_far_member_is_dropped_a_less_far_one_weighs_less_and_baselines_stay():
    mixed = with_logprobs(group(0, [1, 0, 1, 0]), m1=FAR, m2=LESS_FAR)
    bench = bench_of(once(mixed, group(1, [1, 0, 0, 1])))
    record = the_step(bench)
    uses = record.groups[0].uses
    assert [(use.verdict, use.reason) for use in uses] == [
        ("keep", ""),
        ("drop", "k3"),
        ("down_weight", "k3"),
        ("keep", ""),
    ]
    weight = 0.3 / (math.e - 2)
    assert [use.weight for use in uses] == pytest.approx([1.0, 0.0, weight, 1.0])
    plain = 3**0.5 / 2
    assert bench.group.batches[0].advantages_N.tolist()[:4] == pytest.approx([plain, 0.0, plain * weight, -plain])
    assert [use.trained_tokens for use in uses] == [2, 0, 2, 2]
    assert uses[1].segments[0].k3 == pytest.approx(math.exp(3.5) - 4.5)
    assert (uses[1].segments[0].start, uses[1].segments[0].version, uses[1].segments[0].tokens) == (0, 0, 2)
    assert uses[0].seconds == 10.0
    ledger = ledger_of(record)
    assert (ledger.trained, ledger.stale, ledger.stale_by) == (14, 2, {"k3": 2})
    assert record.metrics[metrics.ADMISSION_DROPPED_SHARE] == 2 / 16
    assert record.metrics[metrics.ADMISSION_DROPPED["k3"]] == 1
    assert record.metrics[metrics.ADMISSION_DOWN_WEIGHTED_SHARE] == 2 / 16
    assert record.metrics[metrics.LEDGER_STALE["k3"]] == 2
    near = (math.e - 2) * 2 / 14
    assert record.metrics[metrics.TRAINED_K3] == pytest.approx(near), "without the dropped member"
    assert record.metrics[metrics.TRAINED_ESS_FRACTION] == pytest.approx(
        (12 + 2 * math.e) ** 2 / (14 * (12 + 2 * math.e**2))
    )


def test_a_far_group_is_given_up_and_replaced_at_once():
    """What is dropped is not waited for: HEAD moves, and the cell starts another."""
    heads: list[tuple[int, tuple[int, ...]]] = []

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        heads.append((head.spent, head.given_up))
        if not bench.sequence:
            far = with_logprobs(group(0, [1, 0, 1]), m0=FAR, m2=FAR)
            bench.finish(far, group(1, [1, 0, 1]))
        elif head.spent == 1 and bench.sequence == 1:
            bench.finish(group(2, [1, 0, 0]))

    record = the_step(bench_of(cell))
    assert heads[-1] == (1, (0,))
    assert [use.group for use in record.groups] == [1, 2]
    (give_up,) = record.give_ups
    assert give_up.reason.startswith("divergence: 1 of 3 members admitted; dropped 2 x k3 (largest 28.6 nats")
    assert give_up.task_id == "task-0"
    assert [use.weight for use in give_up.uses] == [0.0, 0.0, 0.0]
    assert [use.verdict for use in give_up.uses] == ["drop", "keep", "drop"]
    assert give_up.uses[0].segments[0].k3 == pytest.approx(math.exp(3.5) - 4.5)
    ledger = ledger_of(record)
    assert ledger.stale_by == {"group": 2, "k3": 4}
    assert (ledger.stale, ledger.failed) == (6, 0)
    assert record.metrics[metrics.GROUPS_DIVERGED] == 1


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_number_that_is_none_fails_its_member_and_never_the_run(bad: float):
    spoilt = with_logprobs(group(0, [1, 0, 1]), m1=(0.0, bad, 0.0, -0.5))
    bench = bench_of(once(spoilt, group(1, [1, 0])))
    record = the_step(bench)
    assert [use.reason for use in record.groups[0].uses] == ["", "not_finite", ""]
    assert record.groups[0].valid_members == 2
    assert record.groups[0].weight == 0.0, "those that are left have the same reward"
    assert bench.group.batches[0].sequences == 4
    assert ledger_of(record).failed == 2


def test_a_member_the_current_policy_has_no_number_for_is_in_no_statistic():
    """The trainer's own forward pass fails on one sequence: that one is left out before the step."""
    unscorable = trajectory(0, 1, reward=0.0, logprobs=(0.0, -1e307, 0.0, -1e307), finished=5.0)
    assert unscorable.valid, "as it was sampled there is nothing wrong with it"
    first, _, third = group(0, [1, 0, 0]).trajectories
    mixed = Group(0, "task-0", "v1", (first, unscorable, third))
    bench = bench_of(once(mixed, group(1, [1, 0])))
    bench.group.current = None
    measure = bench.group.measure

    def fails_on_one(batch: Any) -> Any:
        found = measure(batch)
        lowest = [float(values.min()) for values in batch.behaviour_S.split(batch.lengths_N.tolist())]
        spoilt = [
            replace(one, k3=math.nan) if low < -1e300 else one
            for one, low in zip(found.by_sequence, lowest, strict=True)
        ]
        return replace(found, by_sequence=tuple(spoilt))

    bench.group.measure = fails_on_one  # type: ignore[method-assign]
    record = the_step(bench)
    assert [use.reason for use in record.groups[0].uses] == ["", "not_finite", ""]
    assert [use.segments == () for use in record.groups[0].uses] == [False, True, False]
    assert record.groups[0].reward_mean == 0.5, "the rewards of the other two"
    assert bench.group.batches[0].sequences == 4
    assert ledger_of(record).failed == 2
    assert record.metrics[metrics.MEMBERS_INVALID] == 1
    assert record.metrics[metrics.REWARD_MEAN] == 0.5, "of the members in the batch"
    assert record.metrics[metrics.LAG_SECONDS_MAX] == record.metrics[metrics.LAG_SECONDS_MEAN], "as are all others"


def test_without_limits_a_number_that_is_none_ends_the_run_and_names_the_member():
    bench = bench_of(once(group(0, [1, None, 0]), group(7, [1, None, None, 0])), admission=OPEN)

    def fails(batch: Any) -> Any:
        error = LogprobsNotFinite("sequence 3 of the batch has a log-probability that is no number")
        error.sequence = batch.sequences - 1
        raise error

    bench.group.train = fails  # type: ignore[method-assign]
    with pytest.raises(LogprobsNotFinite, match=r"^group 7 member 3 \(cell c0\): sequence 3 of the batch"):
        bench.loop().run()


def test_what_no_step_was_trained_on_is_in_no_figure_of_training():
    """A group without variance and one with a member too few: neither is trained on, and neither is admission's."""
    bench = bench_of(once(group(0, [1, 1]), group(1, [1, None]), group(2, [0, 0])))
    record = the_step(bench)
    assert [use.trained_tokens for group_used in record.groups for use in group_used.uses] == [0, 0, 0, 0]
    assert ledger_of(record).zero_variance == 8
    assert metrics.TRAINED_K3 not in record.metrics
    assert [give_up.group for give_up in record.give_ups] == [1]
    assert record.metrics[metrics.ADMISSION_DROPPED_SHARE] == 0


def test_a_step_is_run_again_with_the_weights_on_record_and_admits_nothing_anew():
    mixed = with_logprobs(group(0, [1, 0, 1, 0]), m1=FAR, m2=LESS_FAR, m3=(0.0, math.nan, 0.0, -0.5))
    bench = bench_of(once(mixed, group(1, [1, 0, 0, 1])))
    record = the_step(bench)
    scored = len(bench.group.measured)
    again = batch_of_record(bench.run_store, record, bench.params)
    before = bench.group.batches[0]
    assert all(torch.equal(a, b) for a, b in zip(again.tensors(), before.tensors(), strict=True))
    looser = bench.params.model_copy(update={"admission": bench.params.admission.model_copy(update=OPEN)})
    other = batch_of_record(bench.run_store, record, looser)
    assert torch.equal(other.advantages_N, before.advantages_N)
    assert len(bench.group.measured) == scored
    weighed = [use.weight for use in record.groups[0].uses]
    assert 0.0 in weighed
    assert 0 < min(weight for weight in weighed if weight) < 1


def test_what_waits_is_scored_again_after_each_step_and_only_then():
    def cell(bench: Bench) -> None:
        if not bench.sequence:
            bench.finish(*(group(n, [1, 0]) for n in range(4)))

    bench = Bench(parameters(training={"steps": 2}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    assert bench.group.measured == [4, 4], "two groups of two, before each step; the others have had no time"


def test_without_limits_nothing_is_scored():
    bench = bench_of(once(with_logprobs(group(0, [1, 0]), m0=FAR), group(1, [1, 0])), admission=OPEN)
    record = the_step(bench)
    assert bench.group.measured == []
    assert [use.verdict for use in record.groups[0].uses] == ["keep", "keep"]
    assert record.groups[0].uses[0].segments[0].k3 > 20, "the step measures it all the same"
