"""What a restarted trainer knows and does: from step records, HEAD and objects alone, whatever was damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from driftline.errors import LimitExceeded
from driftline.records import Group, StepRecord
from driftline.store import keys
from driftline.store.trajectories import encode_groups
from driftline.tracking import metrics
from tests.support.trainer_bench import Bench, eager_cell, stopped_after, sync
from tests.support.training import FakeGroup, GroupStream, group


def every(steps: int, **training: int) -> Any:
    return sync(training={"steps": 6, **training}, checkpoint={"every_steps": steps})


def resumed(bench: Bench) -> StepRecord:
    """Run to the end with a new trainer; returns its first record."""
    before = len(bench.run_store.steps())
    bench.group = FakeGroup()
    head = bench.loop().run()
    assert (head.step, head.state) == (6, "finished")
    records = bench.run_store.steps()
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    used = [use.group for record in records for use in record.groups]
    gone = [give_up.group for record in records for give_up in record.give_ups]
    assert sorted(used + gone) == list(range(len(used) + len(gone))), "nothing twice, nothing skipped"
    assert bench.group.weight.tolist() == [6.0, 6.0]
    assert all(record.ledger is not None and record.ledger.imbalance == 0 for record in records)
    return records[before]


def test_between_two_checkpoints_the_later_batches_are_run_again():
    bench = Bench(every(3), eager_cell)
    stopped_after(bench, 5)
    first = resumed(bench)
    assert bench.group.acts[:4] == ["load 3", "train", "train", "train"]
    assert first.metrics[metrics.REPLAYED_STEPS] == 2
    assert first.metrics[metrics.RESUME_MISMATCH] == 0


def test_groups_that_arrive_in_another_order_after_the_restart_count_once():
    """The frontier comes from records: what a cursor happened to see first does not matter."""
    streams: dict[str, GroupStream] = {}

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        begun = len(bench.run_store.new_groups())
        if head.version is None or begun >= 2 * (head.step + 1):
            return
        version = head.version.number
        for number, name in ((begun + 1, "c1"), (begun, "c0")):
            stream = streams.setdefault(name, GroupStream(bench.run_store, name))
            stream.write(group(number, [1, 0, 1, 0], version=version))
            if number == 5:  # a second attempt at a group, by the other cell
                streams["c0"].write(group(5, [1, 1, 0, 0], version=version))

    bench = Bench(every(4), cell)
    stopped_after(bench, 5)
    resumed(bench)
    ledger = bench.run_store.steps()[-1].ledger
    assert ledger is not None
    assert ledger.surplus == 8, "the second attempt at group 5"
    assert bench.run_store.steps()[-1].frontier.keys.keys() == {"c0", "c1"}


def test_give_ups_between_checkpoints_are_neither_lost_nor_repeated():
    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        begun = len(bench.run_store.new_groups())
        if head.version is not None and begun < head.spent + 2:
            rewards = [None, None, None, 1] if begun % 5 == 3 else [1, 0, 0, 1]
            bench.finish(group(begun, rewards, version=head.version.number))

    bench = Bench(every(4), cell)
    stopped_after(bench, 5)
    resumed(bench)
    records = bench.run_store.steps()
    assert [g.group for r in records for g in r.give_ups] == [3, 8, 13]
    assert all(g.key for r in records for g in r.give_ups)


def test_a_resumed_trainer_reads_nothing_behind_the_frontier():
    bench = Bench(every(1), eager_cell)
    stopped_after(bench, 5)
    objects = keys.trajectories_prefix("r")
    read: list[str] = []
    get = bench.store.get

    def noted(key: str) -> Any:
        read.append(key)
        return get(key)

    bench.cell = lambda bench: None
    bench.store.get = noted  # type: ignore[method-assign]
    bench.finish(group(10, [1, 0, 0, 1], version=5), group(11, [1, 0, 0, 1], version=5))
    bench.group = FakeGroup()
    bench.loop().run()
    last = [keys.trajectories("r", "c0", bench.sequence - 2), keys.trajectories("r", "c0", bench.sequence - 1)]
    found = [key for key in read if key.startswith(objects)]
    assert found in (last, last[1:]), "the new one; and that of step 5, if it is run again"


@pytest.mark.parametrize("lost", ["manifest.json", "state.pt"])
def test_a_damaged_checkpoint_is_followed_by_the_one_before_it(lost: str):
    bench = Bench(every(2), eager_cell)
    stopped_after(bench, 5)
    named = bench.run_store.steps()[-1].checkpoint
    assert named is not None
    bench.store.put(named.key.replace("manifest.json", lost), b"evil")
    first = resumed(bench)
    loads = [act for act in bench.group.acts if act.startswith("load")]
    older = int(named.key.rpartition("/")[0][-11:-5]) - 2
    assert loads in ([f"load {older}"], []), "the older one, if the newer one had not replaced it yet"
    assert first.metrics[metrics.RESUME_MISMATCH] == 0


def damage_head(body: bytes) -> bytes:
    return body[:50]


@pytest.mark.parametrize("damage", [damage_head, None], ids=["truncated", "gone"])
def test_where_a_batch_is_gone_the_published_weights_are_taken_up(damage: Callable[[bytes], bytes] | None):
    bench = Bench(every(10), eager_cell)
    stopped_after(bench, 4)
    key = bench.run_store.steps()[1].groups[0].key
    if damage is None:
        bench.store.delete([key])
    else:
        bench.store.put(key, damage(bench.store.get(key).body))
    first = resumed(bench)
    assert bench.group.acts[:2] == ["train", "replace"], "one step could be run again"
    assert first.metrics[metrics.RESUME_MISMATCH] == 1
    assert first.metrics[metrics.REPLAYED_STEPS] == 1


@pytest.mark.parametrize("members", [None, [1, 0]], ids=["another group", "fewer members"])
def test_where_a_batch_is_another_than_the_step_has_used_so_they_are(members: list[int] | None):
    """As a backup of another time leaves it: whole, of this run, and wrong."""
    bench = Bench(every(10), eager_cell)
    stopped_after(bench, 4)
    use = bench.run_store.steps()[1].groups[0]
    instead = group(900, [1, 0, 0, 1]) if members is None else group(use.group, members)
    bench.store.put(use.key, encode_groups("r", [instead]))
    first = resumed(bench)
    assert bench.group.acts[:2] == ["train", "replace"], "one step could be run again"
    assert first.metrics[metrics.RESUME_MISMATCH] == 1


def test_what_somebody_else_puts_beside_trajectories_is_passed_over(caplog: pytest.LogCaptureFixture):
    def cell(bench: Bench) -> None:
        bench.store.put(f"{keys.trajectories_prefix('r')}c0/_SUCCESS", b"")
        bench.store.put(f"{keys.trajectories_prefix('r')}c0/00000000 (copy).parquet", b"x")
        eager_cell(bench)

    bench = Bench(every(10), cell)
    stopped_after(bench, 4)
    resumed(bench)
    assert bench.run_store.next_sequence("c0") == bench.sequence
    assert bench.run_store.read_head()[0].set_aside == ()
    assert [
        record.getMessage().partition(" is no object")[0]
        for record in caplog.records
        if "_SUCCESS" in record.getMessage()
    ]


def spoil(bench: Bench, *groups: Group) -> None:
    key = bench.stream.write(*groups)
    bench.store.put(key, bench.store.get(key).body[:-20])


def test_an_object_that_cannot_be_read_is_said_in_head_and_known_after_a_restart():
    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        if bench.sequence == 0:
            spoil(bench, group(0, [1, 0]))
        elif bench.sequence == 1 and head.set_aside:
            bench.finish(replaced(group(0, [1, 0])), group(1, [1, 0]))
        elif bench.sequence == head.step + 1 > 1:
            bench.finish(*(group(2 * head.step + n, [1, 0], version=head.step) for n in range(2)))

    bench = Bench(every(1), cell)
    stopped_after(bench, 2)
    (spoilt,) = bench.run_store.read_head()[0].set_aside
    assert [event["message"][: len(spoilt)] for event in bench.events if event["event"] == "warning"] == [spoilt]
    bench.events.clear()
    resumed(bench)
    assert bench.run_store.read_head()[0].set_aside == (spoilt,)
    assert [event for event in bench.events if event["event"] == "warning"] == []
    last = bench.run_store.steps()[-1]
    assert last.metrics[metrics.DAMAGED_OBJECTS] == 1
    assert last.ledger is not None
    assert last.ledger.lost == 4


def replaced(one: Group) -> Group:
    return replace(one, trajectories=tuple(replace(member, attempt=2) for member in one.trajectories))


def test_too_many_objects_that_cannot_be_read_end_the_run():
    bench = Bench(sync(limits={"damaged_objects": 1}))
    bench.cell = lambda bench: spoil(bench, group(bench.sequence, [1, 0]))
    with pytest.raises(LimitExceeded, match=r"2 objects of finished groups cannot be read.*limits\.damaged_objects"):
        bench.loop().run()
    assert torch.equal(bench.group.weight, torch.zeros(2))
