"""The loop over a store in memory and a trainer group without DeepSpeed: what is written, in which order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from driftline.errors import EpochLost, LimitExceeded, PublishRefused
from driftline.measured import NOTHING
from driftline.params import RunParameters
from driftline.records import CheckpointManifest, Group, OffsetReport, PolicyVersion, decode, encode
from driftline.store import keys
from driftline.store.files import entry_of
from driftline.store.memory import MemoryStore
from driftline.store.protocol import WriteResult
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.sink import NullSink
from driftline.training.batch import TrainingBatch
from driftline.training.loop import TrainingLoop
from driftline.training.protocol import StepOutcome
from tests.support.training import FakeGroup, GroupStream, by_sequence, group, new_run, outcome, parameters


class Recorder(MemoryStore):
    """Remembers the keys written, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def put(self, key: str, body: bytes) -> WriteResult:
        self.written.append(key)
        return super().put(key, body)

    def create(self, key: str, body: bytes) -> WriteResult:
        self.written.append(key)
        return super().create(key, body)

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        self.written.append(key)
        return super().swap(key, body, etag)


class Bench:
    """One run, and the clock of its trainer: whoever sleeps moves it on, and lets a cell work."""

    def __init__(self, params: RunParameters, cell: Callable[[Bench], None] = lambda bench: None) -> None:
        self.store = Recorder()
        self.params = params
        self.run_store: RunStore = new_run(self.store, "r", params)
        self.group = FakeGroup()
        self.now = 1000.0
        self.cell = cell
        self.events: list[Any] = []
        self.stream = GroupStream(self.run_store)
        self.signing_key: bytes | None = None

    @property
    def sequence(self) -> int:
        return self.stream.sequence

    def finish(self, *groups: Group) -> None:
        self.stream.write(*groups)

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1.0)
        self.cell(self)

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def loop(self) -> TrainingLoop:
        return TrainingLoop(
            self.run_store,
            self.run_store.take_epoch(),
            self.params,
            self.group,
            NullSink(),
            scratch=Path(tempfile.mkdtemp()),
            emit=self.emit,
            clock=lambda: self.now,
            sleep=self.sleep,
            signing_key=self.signing_key,
        )


def eager_cell(bench: Bench) -> None:
    """Finishes whatever the admission rule lets start."""
    head, _ = bench.run_store.read_head()
    begun = len(bench.run_store.new_groups())
    admitted = head.spent + bench.params.rollout.groups_per_step + head.lead_groups
    if begun < admitted:
        assert head.version is not None
        bench.finish(*(group(n, [1, 0, 0, 1], version=head.version.number) for n in range(begun, admitted)))


def sync(**sections: Any) -> RunParameters:
    return parameters(overlap={"lead_groups": 0}, **sections)


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


def test_a_change_of_the_cause_is_told_once():
    bench = steered(30, controller="fixed", lead_groups=8, max_lag_versions=4)
    bench.loop().run()
    told = [event for event in bench.events if event["event"] == "warning"]
    assert [(event["type"], event["message"].split(":")[1]) for event in told] == [("Diagnosis", " staleness")]
    assert "lower the lead" in told[0]["message"]
    assert bench.run_store.steps()[-1].metrics[metrics.CAUSE] == 2
    assert bench.run_store.steps()[-1].lead_why == ""


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


def stopped_after(bench: Bench, steps: int) -> None:
    """Run until `steps` are committed, then die without a word."""

    class Killed(BaseException):
        pass

    sleep, cell = bench.sleep, bench.cell

    def watch(bench: Bench) -> None:
        if bench.run_store.read_head()[0].step >= steps:
            raise Killed
        cell(bench)

    bench.cell = watch
    with pytest.raises(Killed):
        bench.loop().run()
    bench.sleep, bench.cell = sleep, cell


def test_a_restarted_trainer_goes_on_where_head_is():
    """trl#7274, OpenRLHF#1322: no group twice, no finished group lost."""
    bench = Bench(parameters(overlap={"lead_groups": 1}), eager_cell)
    stopped_after(bench, 2)
    bench.group = FakeGroup()
    head = bench.loop().run()
    assert (head.step, head.state, head.version) == (3, "finished", PolicyVersion(3, 2))
    used = [use.group for record in bench.run_store.steps() for use in record.groups]
    assert sorted(used) == list(range(6))
    final = bench.run_store.steps()[-1]
    assert final.metrics[metrics.RESUME_MISMATCH] == 0
    assert bench.group.acts.count("replace") == 0
    assert bench.group.weight.tolist() == [3.0, 3.0]


def test_steps_after_the_checkpoint_are_run_again_with_the_same_batches():
    bench = Bench(sync(checkpoint={"every_steps": 5}), eager_cell)
    stopped_after(bench, 2)
    first = bench.group
    bench.group = FakeGroup()
    bench.loop().run()
    assert bench.group.acts == ["train"] * 3
    for again, before in zip(bench.group.batches[:2], first.batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(again.tensors(), before.tensors(), strict=True))
    assert bench.run_store.steps()[-1].metrics[metrics.REPLAYED_STEPS] == 2


def test_weights_that_cannot_be_reproduced_are_taken_from_the_store():
    bench = Bench(sync(checkpoint={"every_steps": 5}), eager_cell)
    stopped_after(bench, 2)
    bench.group = FakeGroup()
    bench.group.weight = torch.full((2,), 0.5)
    bench.loop().run()
    assert "replace" in bench.group.acts
    assert bench.group.weight.tolist() == [3.0, 3.0]
    assert bench.run_store.steps()[-1].metrics[metrics.RESUME_MISMATCH] == 1


def test_a_damaged_checkpoint_is_not_loaded(tmp_path: Path):
    bench = Bench(sync(), eager_cell)
    stopped_after(bench, 2)
    entry = bench.run_store.steps()[-1].checkpoint
    assert entry is not None
    bench.store.put(entry.key.replace("manifest.json", "state.pt"), b"evil")
    bench.group = FakeGroup()
    bench.loop().run()
    assert [act for act in bench.group.acts if act.startswith("load")] == []
    assert bench.run_store.steps()[-1].metrics[metrics.REPLAYED_STEPS] == 2


def test_a_checkpoint_is_loaded_only_where_a_signed_record_names_it():
    """Record, manifest and files all replaced, and consistent with one another: only the key tells."""
    bench = Bench(sync(), eager_cell)
    bench.signing_key = b"a key of the run"
    stopped_after(bench, 2)
    (head, _), record = bench.run_store.read_head(), bench.run_store.steps()[-1]
    assert head.record is not None
    assert record.checkpoint is not None
    genuine = decode(CheckpointManifest, bench.store.get(record.checkpoint.key).body)
    forged = encode(replace(genuine, epoch=9))
    bench.store.put(record.checkpoint.key, forged)
    bench.store.put(head.record, encode(replace(record, checkpoint=entry_of(record.checkpoint.key, forged))))
    bench.run_store, bench.group = RunStore(bench.store, "r"), FakeGroup()
    bench.loop().run()
    assert [act for act in bench.group.acts if act.startswith("load")] == []
    assert bench.run_store.steps()[-1].metrics[metrics.REPLAYED_STEPS] == 2


def test_give_ups_before_a_restart_are_on_the_next_record():
    bench = Bench(sync(training={"steps": 1}))

    class Killed(BaseException):
        pass

    def die(bench: Bench) -> None:
        if bench.sequence:
            raise Killed
        bench.finish(group(0, [None, None]), group(1, [1, 0]))

    bench.cell = die
    with pytest.raises(Killed):
        bench.loop().run()
    bench.cell = lambda bench: bench.finish(group(2, [1, 0])) if bench.sequence == 1 else None
    head = bench.loop().run()
    (record,) = bench.run_store.steps()
    assert [give_up.group for give_up in record.give_ups] == [0]
    assert record.give_ups[0].reason.startswith("too few valid members")
    assert (head.spent, head.given_up) == (3, ())


def test_only_checkpoints_that_may_be_needed_stay():
    bench = Bench(sync(training={"steps": 4}), eager_cell)
    bench.loop().run()
    prefix = f"{keys.run_prefix('r')}checkpoints/"
    kept = sorted({info.key.removeprefix(prefix)[:6] for info in bench.store.list(prefix)})
    assert kept[-1] == "000004"
    assert len(kept) <= 2
    named = bench.run_store.steps()[-1].checkpoint
    assert named is not None
    bench.store.get(named.key)
