"""A trainer that takes up a run: where it goes on, with which weights, and what it tells again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from driftline.records import CheckpointManifest, PolicyVersion, decode, encode
from driftline.store import keys
from driftline.store.files import entry_of
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from tests.support.toy_run import RecordingSink
from tests.support.trainer_bench import Bench, eager_cell, stopped_after, sync
from tests.support.training import FakeGroup, group, parameters


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


def test_a_trainer_that_takes_over_sends_the_metrics_of_the_last_steps_again():
    bench = Bench(sync(training={"steps": 6, "learning_rate": 1e-2}), eager_cell)
    stopped_after(bench, 4)
    bench.sink = sink = RecordingSink()
    bench.loop().run()
    sent = [step for name, _, step in sink.points if name == metrics.LOSS]
    assert sent == [*range(2, bench.params.training.steps + 1)]
    recorded = {record.step: record.metrics[metrics.LOSS] for record in bench.run_store.steps()}
    assert all(value == recorded[step] for name, value, step in sink.points if name == metrics.LOSS)
