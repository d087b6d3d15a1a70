"""Garbage collection: what goes, what stays, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from driftline.accounts import Frontier
from driftline.errors import ConfigurationError, CorruptObject
from driftline.records import FileEntry, GroupUse, PolicyVersion, StepRecord, StepTimes, WeightsManifest
from driftline.store import keys
from driftline.store.collection import Plan, collect, plan
from driftline.store.memory import MemoryStore
from driftline.store.pins import pinned, pins
from driftline.store.run_store import RunStore
from tests.support import records
from tests.support.clock import Clock
from tests.support.records import RUN

STEPS = 10


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


def manifest(number: int, base: int | None) -> WeightsManifest:
    version = PolicyVersion(number, 1)
    key = f"{keys.policy_prefix(RUN, version)}weights.safetensors"
    return replace(
        records.manifest(number),
        kind="anchor" if base is None else "delta",
        base=None if base is None else PolicyVersion(base, 1),
        files=(FileEntry(key, 4, "00"),),
    )


@pytest.fixture
def runs(store: MemoryStore, clock: Clock) -> RunStore:
    """Ten steps of one group each; anchors are 0 and 6, all other versions deltas; a checkpoint every third step."""
    runs = RunStore(store, RUN)
    runs.create(records.description())
    etag = runs.create_head(records.head())
    previous, checkpoint = None, None
    for number in range(STEPS + 1):
        one = manifest(number, None if number in (0, 6) else number - 1)
        store.put(one.files[0].key, b"1234")
        runs.write_manifest(one)
    for step in range(1, STEPS + 1):
        key = runs.append_groups("c0", step - 1, [records.group(step)])
        versions = PolicyVersion(step - 1, 1), PolicyVersion(step, 1)
        use = GroupUse(step, key, 1, f"task-{step}", "v1", 1.0, 2, 2, 0.5, 0.5, 0.5, 0.0, 0, 6)
        previous = runs.write_step(
            StepRecord(
                RUN,
                step,
                1,
                *versions,
                (use,),
                (),
                {},
                {},
                StepTimes(0, 0, 0, 0, 0, 0),
                previous,
                checkpoint=checkpoint,
                frontier=Frontier({"c0": key}),
            )
        )
        if step % 3 == 0:
            prefix = keys.checkpoint_prefix(RUN, step, 1)
            store.put(f"{prefix}state.pt", b"123456")
            store.put(f"{prefix}manifest.json", b"{}")
            checkpoint = FileEntry(f"{prefix}manifest.json", 2, "00")
    runs.append_groups("c0", STEPS, [records.group(STEPS + 1)])
    head = records.head(epoch=1, step=STEPS, version=PolicyVersion(STEPS, 1), record=previous)
    runs.swap_head(head, etag)
    clock.now += 10_000.0
    return runs


def doomed(found: Plan, folder: str) -> list[str]:
    prefix = f"{keys.run_prefix(RUN)}{folder}/"
    return [one.key.removeprefix(prefix) for one in found.doomed if one.key.startswith(prefix)]


def numbers(names: list[str]) -> set[int]:
    return {int(name.replace("/", "-").split("-")[0]) for name in names}


def test_what_no_kept_step_needs_goes_and_the_chains_of_what_stays_do_not(runs: RunStore) -> None:
    found = plan(runs, keep_steps=2, keep_versions=1)
    assert numbers(doomed(found, "policy")) == {1, 2, 3, 4, 5}, (
        "8 to 10 need 7 and the anchor 6; 0 is the base policy"
    )
    trajectories = [int(name.split("/")[1].split(".")[0]) for name in doomed(found, "trajectories")]
    assert trajectories == [*range(STEPS - 2)]
    assert numbers(doomed(found, "checkpoints")) == {3, 6}
    assert doomed(found, "steps") == []
    assert found.unreplayable == tuple(range(1, 9))
    assert found.by_reason()["an older checkpoint"] == (4, 16)
    total = sum(info.bytes for info in runs.store.list(keys.run_prefix(RUN)))
    assert found.bytes + found.kept_bytes == total


def test_every_step_after_the_checkpoint_can_be_run_again(runs: RunStore, store: MemoryStore) -> None:
    record = runs.steps()[-1]
    assert record.checkpoint is not None
    older = replace(record, checkpoint=FileEntry(record.checkpoint.key.replace("000009", "000006"), 2, "00"))
    store.put(keys.step(RUN, STEPS, 1), records_body(older))
    found = plan(RunStore(store, RUN), keep_steps=1, keep_versions=1)
    assert found.unreplayable == tuple(range(1, 7))
    assert numbers(doomed(found, "checkpoints")) == {3}
    assert numbers(doomed(found, "policy")) == {1, 2, 3, 4, 5}


def records_body(record: StepRecord) -> bytes:
    from driftline.records import encode

    return encode(record)


def test_a_dry_run_deletes_nothing_and_collecting_deletes_just_that(runs: RunStore, store: MemoryStore) -> None:
    before = {info.key for info in store.list("")}
    found = plan(runs, keep_steps=2, keep_versions=3)
    assert {info.key for info in store.list("")} == before
    collect(runs, found)
    assert {info.key for info in store.list("")} == before - {one.key for one in found.doomed}
    again = plan(runs, keep_steps=2, keep_versions=3)
    assert again.doomed == ()
    assert [record.step for record in runs.steps()] == [*range(1, STEPS + 1)]
    assert runs.next_sequence("c0") == STEPS + 1
    assert [group.number for group in runs.trajectory_cursor(runs.steps()[-1].frontier.keys).poll()] == [STEPS + 1]


def test_what_a_reader_has_pinned_stays_with_its_chain_as_long_as_the_pin_holds(
    runs: RunStore, store: MemoryStore, clock: Clock
) -> None:
    version, key = PolicyVersion(3, 1), keys.trajectories(RUN, "c0", 3)
    with pinned(store, RUN, "replay-1", versions=[version], objects=[key], lease_s=60.0):
        assert [pin.reader for pin in pins(store, RUN)] == ["replay-1"]
        found = plan(runs, keep_steps=2, keep_versions=1)
        assert numbers(doomed(found, "policy")) == {4, 5}
        assert "c0/00000003.parquet" not in doomed(found, "trajectories")
        clock.now += 61.0
        assert pins(store, RUN) == []
        assert numbers(doomed(plan(runs, keep_steps=2, keep_versions=1), "policy")) == {1, 2, 3, 4, 5}
    assert not [*store.list(keys.pins_prefix(RUN))]


def test_a_pin_that_came_after_the_plan_holds_as_well(runs: RunStore, store: MemoryStore) -> None:
    found = plan(runs, keep_steps=2, keep_versions=1)
    with pinned(store, RUN, "late", versions=[PolicyVersion(2, 1)]):
        collect(runs, found)
    for number in (0, 1, 2):
        assert runs.read_manifest(PolicyVersion(number, 1)).version.number == number
    assert numbers(doomed(plan(runs, keep_steps=2, keep_versions=1), "policy")) == {1, 2}


def test_what_is_young_stays_by_the_stores_clock(runs: RunStore, store: MemoryStore, clock: Clock) -> None:
    store.put(f"{keys.policy_prefix(RUN, PolicyVersion(11, 1))}weights.safetensors", b"on its way")
    store.put(keys.step(RUN, 11, 1), b"{}")
    assert numbers(doomed(plan(runs, keep_steps=2, keep_versions=1), "policy")) == {1, 2, 3, 4, 5}
    clock.now += 601.0
    found = plan(runs, keep_steps=2, keep_versions=1)
    assert numbers(doomed(found, "policy")) == {1, 2, 3, 4, 5, 11}, "no record names it: garbage of a lost epoch"
    assert doomed(found, "steps") == ["000011-0001.json"]


def test_groups_that_are_not_used_yet_stay(runs: RunStore, store: MemoryStore) -> None:
    record = replace(runs.steps()[-1], frontier=Frontier({"c0": keys.trajectories(RUN, "c0", 4)}))
    store.put(keys.step(RUN, STEPS, 1), records_body(record))
    found = plan(RunStore(store, RUN), keep_steps=1, keep_versions=1)
    assert [name[-9:] for name in doomed(found, "trajectories")] == [f"{n}.parquet" for n in range(5)]


@pytest.mark.parametrize("damage", [lambda body: body[:20], lambda body: b""])
def test_what_cannot_be_read_stops_the_collection(
    runs: RunStore, store: MemoryStore, damage: Callable[[bytes], bytes]
) -> None:
    key = keys.policy_manifest(RUN, PolicyVersion(STEPS, 1))
    store.put(key, damage(store.get(key).body))
    with pytest.raises(CorruptObject):
        plan(runs, keep_steps=2, keep_versions=1)
    with pytest.raises(ConfigurationError, match="at least 1"):
        plan(runs, keep_steps=0, keep_versions=1)


def test_a_run_that_has_not_stepped_loses_nothing(store: MemoryStore, clock: Clock) -> None:
    runs = RunStore(store, RUN)
    runs.create(records.description())
    runs.create_head(records.head(version=PolicyVersion(0, 1)))
    runs.write_manifest(manifest(0, None))
    runs.append_groups("c0", 0, [records.group(0)])
    clock.now += 10_000.0
    assert plan(runs, keep_steps=1, keep_versions=1).doomed == ()
