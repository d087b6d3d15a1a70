"""The loop over a store in memory and a trainer group without DeepSpeed: what is written, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from driftline.errors import EpochLost, LimitExceeded, PublishRefused
from driftline.records import OffsetReport, PolicyVersion
from driftline.tracking import metrics
from driftline.training.batch import TrainingBatch
from tests.support.trainer_bench import Bench, eager_cell, sync
from tests.support.training import by_sequence, group, outcome, parameters


def test_a_run_from_the_base_policy_to_its_end():
    bench = Bench(sync(), eager_cell)
    head = bench.loop().run()
    assert (head.step, head.spent, head.state, head.given_up) == (3, 6, "finished", ())
    assert head.version == PolicyVersion(3, 1)
    records = bench.run_store.steps()
    assert [record.step for record in records] == [1, 2, 3]
    assert [[use.group for use in record.groups] for record in records] == [[0, 1], [2, 3], [4, 5]]
    assert [record.version_in.number for record in records] == [0, 1, 2]
    assert [event["event"] for event in bench.events] == ["ready", "progress", "progress", "progress"]
    for number in range(4):
        manifest = bench.run_store.read_manifest(PolicyVersion(number, 1))
        assert list(manifest.tensors) == ["weight"]
        assert len(manifest.probe.token_ids) == len(manifest.probe.logprobs) + 1 == 64


def test_a_lead_of_none_is_exactly_synchronous():
    bench = Bench(sync(), eager_cell)
    bench.loop().run()
    assert [use.lag_max for record in bench.run_store.steps() for use in record.groups] == [0] * 6


def test_with_a_lead_the_lag_is_bounded_by_it():
    bench = Bench(parameters(), eager_cell)
    bench.loop().run()
    assert [use.lag_max for record in bench.run_store.steps() for use in record.groups] == [0, 0, 1, 1, 0, 0]


def test_the_swap_of_head_is_the_last_write_of_a_step():
    """SpecForge#659: nobody reads what is half written."""
    bench = Bench(sync(training={"steps": 1}, checkpoint={"every_steps": 2}), eager_cell)
    bench.loop().run()
    written = [key.removeprefix("runs/r/") for key in bench.store.written]
    policy = "policy/000001-0001/"
    step = written[written.index(f"{policy}anchor-00000.safetensors") :]
    assert step[:4] == [
        f"{policy}anchor-00000.safetensors",
        f"{policy}manifest.json",
        "steps/000001-0001.json",
        "HEAD",
    ]


def test_the_first_wait_begins_when_the_engines_are_up():
    def late_cell(bench: Bench) -> None:
        if bench.now == 1100.0:
            report = OffsetReport("r", "c0", "i", 0, 0, 1097.5, 1100.0, 1, 0, 10, 0.05)
            bench.run_store.write_offset(report)
        if bench.now >= 1105.0:
            eager_cell(bench)

    bench = Bench(sync(training={"steps": 2}), late_cell)
    bench.loop().run()
    first, second = bench.run_store.steps()
    assert (first.times.previous_commit, first.times.batch_ready) == (1097.5, 1105.0)
    assert second.times.previous_commit == first.times.committed


def test_the_record_holds_times_metrics_and_the_critical_path():
    bench = Bench(sync(training={"steps": 1}), eager_cell)
    bench.loop().run()
    (record,) = bench.run_store.steps()
    times = record.times
    assert times.previous_commit <= times.batch_ready <= times.train_start <= times.train_end <= times.publish_end
    assert record.metrics[metrics.TIME_TO_BATCH] == times.batch_ready - times.previous_commit > 0
    assert sum(record.time_to_batch_s.values()) == pytest.approx(record.metrics[metrics.TIME_TO_BATCH])
    assert record.metrics[metrics.REWARD_MEAN] == 0.5
    assert record.metrics[metrics.K3] == 0.3
    assert record.metrics[metrics.GRADIENT_NORM] == 1.5
    assert record.metrics[metrics.GROUPS_TRAINED] == 2
    assert record.metrics[metrics.FLOOR_K3] == 0.0, "the tokens of lag 0 are as they were sampled"
    assert bench.run_store.spans()[0].lane == "waiting/train"


def test_the_requests_of_a_step_do_not_grow_with_the_run():
    def cell(bench: Bench) -> None:
        version = bench.run_store.read_head()[0].step
        groups = [group(2 * bench.sequence + n, [1, 0, 0, 1], version=version) for n in range(2)]
        if bench.sequence == version:
            bench.finish(*groups)

    bench = Bench(sync(training={"steps": 60}), cell)
    bench.loop().run()
    counts = [record.metrics[metrics.STORE_REQUESTS] for record in bench.run_store.steps()]
    assert sum(counts[40:]) == pytest.approx(sum(counts[20:40]), rel=0.15)
    assert min(counts) > 0


def test_the_store_seconds_of_a_step_add_up():
    bench = Bench(sync(training={"steps": 2}), eager_cell)
    bench.loop().run()
    parts = (metrics.STORE_READ_SECONDS, metrics.STORE_PUBLISH_SECONDS, metrics.STORE_COMMIT_SECONDS)
    for record in bench.run_store.steps():
        assert record.metrics[metrics.STORE_SECONDS] == pytest.approx(sum(record.metrics[part] for part in parts))
    first, second = bench.run_store.steps()
    assert first.metrics[metrics.STORE_COMMIT_SECONDS] == 0.0
    assert second.metrics[metrics.STORE_COMMIT_SECONDS] > 0.0
    assert second.metrics[metrics.STORE_PUBLISH_SECONDS] > 0.0


def test_a_group_without_variance_has_weight_zero_and_is_counted():
    bench = Bench(sync(training={"steps": 1}))
    bench.cell = lambda bench: bench.finish(group(0, [1, 1, 1]), group(1, [0, 1, 1])) if not bench.sequence else None
    bench.loop().run()
    (record,) = bench.run_store.steps()
    assert [use.weight for use in record.groups] == [0.0, 1.0]
    assert bench.group.batches[0].advantages_N.tolist()[:3] == [0.0] * 3
    assert record.metrics[metrics.GROUPS_ZERO_VARIANCE] == 1


def test_a_failed_group_is_replaced_at_once():
    """SkyRL#1691: 125 of 128 for 29 hours. What is given up moves HEAD, so that cells start another."""
    bench = Bench(sync(training={"steps": 1}))
    seen: list[tuple[int, tuple[int, ...]]] = []

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        seen.append((head.spent, head.given_up))
        if bench.sequence == 0:
            bench.finish(group(0, [None, None, 1]), group(1, [1, 0]))
        elif head.spent == 1:
            bench.finish(group(2, [1, 0]))

    bench.cell = cell
    head = bench.loop().run()
    assert seen[-1] == (1, (0,))
    assert (head.spent, head.given_up) == (3, ())
    (record,) = bench.run_store.steps()
    assert [use.group for use in record.groups] == [1, 2]
    assert [give_up.group for give_up in record.give_ups] == [0]
    assert record.metrics[metrics.GROUPS_FAILED] == 1


def test_too_many_failed_groups_end_the_run():
    bench = Bench(sync(limits={"failed_groups": 1}))
    bench.cell = lambda bench: bench.finish(group(bench.sequence, [None, None]))
    with pytest.raises(LimitExceeded, match=r"2 groups were given up .*limits\.failed_groups"):
        bench.loop().run()


def test_no_batch_in_time_ends_the_run():
    """prime-rl#1713: no silent hang."""
    bench = Bench(sync(limits={"batch_deadline_s": 20.0}))
    with pytest.raises(LimitExceeded, match=r"no full batch in 20 s: 0 of 2 groups .*limits\.batch_deadline_s"):
        bench.loop().run()


@pytest.mark.parametrize("by_s", [86_400.0, -86_400.0])
def test_a_wait_is_measured_by_a_clock_that_nobody_sets(by_s: float):
    """A machine whose time is set while the trainer waits neither ends the wait nor makes it longer."""
    looks = 0

    def cell(bench: Bench) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            bench.now += by_s
            bench.set_by += by_s
        if looks > 6 and by_s > 0:
            eager_cell(bench)
        assert looks < 100, "it waits on"

    bench = Bench(sync(limits={"batch_deadline_s": 20.0}), cell)
    if by_s > 0:
        assert bench.loop().run().state == "finished"
    else:
        with pytest.raises(LimitExceeded, match="no full batch in 20 s"):
            bench.loop().run()


def test_a_failure_is_written_into_head():
    bench = Bench(sync())
    loop = bench.loop()
    loop.fail("LimitExceeded: x")
    head, _ = bench.run_store.read_head()
    assert (head.state, head.reason) == ("failed", "LimitExceeded: x")


def test_a_newer_trainer_stops_this_one_and_keeps_its_head():
    bench = Bench(sync(), eager_cell)

    def train_then_lose(batch: TrainingBatch) -> Any:
        bench.run_store.take_epoch()
        bench.group.weight = bench.group.weight + 1
        return by_sequence(outcome(), batch)

    bench.group.train = train_then_lose  # type: ignore[method-assign]
    loop = bench.loop()
    with pytest.raises(EpochLost):
        loop.run()
    loop.fail("EpochLost")
    head, _ = bench.run_store.read_head()
    assert (head.epoch, head.step, head.state) == (2, 0, "running")


def test_a_trainer_that_waits_notices_that_it_was_replaced():
    bench = Bench(sync())
    bench.cell = lambda bench: bench.run_store.take_epoch() and None if bench.now == 1003.0 else None
    with pytest.raises(EpochLost):
        bench.loop().run()
    assert bench.now < 1010.0


def test_weights_that_do_not_change_are_refused():
    """verl#7495: frozen weights sent again and again."""
    bench = Bench(sync(), eager_cell)
    bench.group.train = lambda batch: by_sequence(outcome(), batch)  # type: ignore[method-assign]
    with pytest.raises(PublishRefused, match="bit-identical"):
        bench.loop().run()


def test_weights_may_stay_at_a_learning_rate_of_zero():
    """open-instruct#1473: the null update."""
    bench = Bench(sync(training={"steps": 1, "learning_rate": 0.0}), eager_cell)
    bench.group.train = lambda batch: by_sequence(outcome(), batch)  # type: ignore[method-assign]
    assert bench.loop().run().step == 1


def test_weights_may_stay_when_the_batch_teaches_nothing():
    bench = Bench(sync(training={"steps": 1}), eager_cell)
    bench.group.train = lambda batch: by_sequence(outcome(trained_sequences=0), batch)  # type: ignore[method-assign]
    assert bench.loop().run().step == 1
