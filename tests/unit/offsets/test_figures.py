"""What is kept of a record: the right sums, and nothing where nothing was measured."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from driftline.measured import SegmentUse
from driftline.offsets.downsample import buckets, column, gathered
from driftline.offsets.figures import KEPT, Admitted, figures, pooled_tokens
from driftline.records import GiveUp
from driftline.tracking import metrics
from tests.support import offset_runs


def segment(logs: list[float]) -> SegmentUse:
    """The exact estimates of tokens with these log ratios (current over behaviour)."""
    count = len(logs)
    ratios = [math.exp(value) for value in logs]
    k1 = -sum(logs) / count
    k3 = sum(r - 1 - value for r, value in zip(ratios, logs, strict=True)) / count
    ess = sum(ratios) ** 2 / sum(r * r for r in ratios) / count
    return SegmentUse(0, 0, count, k1, k3, ess)


def test_pooling_parts_is_as_measuring_all_their_tokens_at_once():
    rng = random.Random(7)
    parts = [[rng.gauss(0, 0.4) for _ in range(rng.randint(1, 40))] for _ in range(5)]
    whole, pooled = segment([value for part in parts for value in part]), pooled_tokens(map(segment, parts))
    assert pooled is not None
    assert pooled.tokens == whole.tokens
    assert (pooled.k1, pooled.k3, pooled.ess_fraction) == pytest.approx((whole.k1, whole.k3, whole.ess_fraction))


def test_without_tokens_there_is_no_divergence_rather_than_none_of_it():
    assert pooled_tokens([SegmentUse(0, 0, 0, 0.0, 0.0, 1.0)]) is None


def test_members_are_summed_by_version_cell_and_verdict():
    record = offset_runs.record("r", 5, None, groups=2, members=4, lag=2)
    found = figures(record)
    members = [use for group in record.groups for use in group.uses]
    assert sum(part.tokens for part in found.by_version.values()) == sum(m.sampled_tokens for m in members)
    assert set(found.by_version) == {2, 3}
    assert found.by_cell["c0"].tokens == sum(m.sampled_tokens for m in members if m.cell == "c0")
    assert sum(one.members for one in found.admission.values()) == 8
    assert list(found.groups) == [8, 9]


def test_each_members_divergence_is_kept_by_version_and_by_environment():
    record = offset_runs.record("r", 5, None, groups=2, members=4, lag=2)
    first, second = record.groups
    far = replace(first.uses[0], segments=(SegmentUse(2, 2, 10, 0.5, 0.5, 0.9), SegmentUse(20, 3, 30, 0.1, 0.1, 0.9)))
    uneven = replace(
        record,
        groups=(
            replace(first, environment="a/v1", uses=(far, *first.uses[1:])),
            replace(second, environment="b/v1", uses=(replace(second.uses[0], segments=()), *second.uses[1:])),
        ),
    )
    found = figures(uneven)
    assert sorted(found.member_k3_by_version[2]) == pytest.approx([0.01] * 6 + [0.5])
    assert sorted(found.member_k3_by_version[3]) == pytest.approx([0.01] * 6 + [0.1])
    assert sorted(found.member_k3_by_environment["a/v1"]) == pytest.approx([0.01] * 3 + [(5 + 3) / 40])
    assert len(found.member_k3_by_environment["b/v1"]) == 3, "one was not scored"


def test_groups_given_up_are_counted_by_the_kind_of_reason():
    """Each reason has the figures of its own group: kept whole, every group of a long run would be a row."""
    gone = [
        GiveUp(90 + n, f"divergence: {n} of 8 members admitted; dropped {8 - n} x k3 (largest {n}.5 nats)", 10 + n)
        for n in range(2)
    ]
    found = figures(replace(offset_runs.record("r", 5, None), give_ups=(*gone, GiveUp(99, "stale: 2 of 2", 5))))
    assert found.give_ups == {"divergence": Admitted(2, 21), "stale": Admitted(1, 5)}


def test_a_record_of_before_has_none_for_what_it_does_not_say():
    found = figures(offset_runs.old(offset_runs.record("r", 5, None)))
    assert (found.lead_groups, found.diagnosis) == (None, None)
    assert not found.by_lag
    assert not found.by_version
    assert found.value(metrics.K3) == 0.01
    assert found.value(metrics.LOSS) is None


def test_what_is_not_finite_counts_as_not_measured():
    record = offset_runs.record("r", 5, None)
    found = figures(replace(record, metrics={**record.metrics, metrics.K3: math.nan, metrics.K1: math.inf}))
    assert found.value(metrics.K3) is None
    assert metrics.K1 not in found.metrics()


def test_every_kept_metric_is_one_that_mlflow_has():
    metrics.check(KEPT)


@pytest.mark.parametrize(("count", "points"), [(0, 5), (1, 5), (5, 5), (6, 5), (7, 2), (2_000, 240), (241, 240)])
def test_buckets_cover_every_index_once_in_order_and_leave_the_newest_alone(count: int, points: int):
    found = buckets(count, points)
    assert [i for bucket in found for i in bucket] == list(range(count))
    assert len(found) <= points
    assert all(len(bucket) for bucket in found)
    if count:
        assert len(found[-1]) == 1


def test_a_bucket_is_the_mean_or_the_largest_of_what_was_measured():
    nan = math.nan
    values = np.array([[1.0, nan], [nan, -5.0], [3.0, nan], [nan, nan], [nan, math.inf], [8.0, -1.0]])
    into = [range(0, 3), range(3, 5), range(5, 6)]
    means, peaks = gathered(values, into), gathered(values, into, peaks=True)
    assert (column(means, 0), column(peaks, 0)) == ([2.0, None, 8.0], [3.0, None, 8.0])
    assert (column(means, 1), column(peaks, 1)) == ([-5.0, None, -1.0], [-5.0, None, -1.0])
