"""Objects that are truncated, another run's, or of a newer format: a clear error, or a recovery that is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from driftline.errors import CorruptObject
from driftline.records import Claim, Head, OffsetReport, PolicyVersion, Span, StepRecord, decode, encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.store.trajectories import encode_groups
from tests.support import records
from tests.support.clock import Clock
from tests.support.records import RUN

LEASE_S = 20.0


def truncated(body: bytes) -> bytes:
    return body[: len(body) // 2]


def newer(body: bytes) -> bytes:
    return json.dumps(json.loads(body) | {"format": 2}).encode()


def rubbish(_body: bytes) -> bytes:
    return b"\x00\xff rubbish"


DAMAGE = [truncated, newer, rubbish]
Damage = Callable[[bytes], bytes]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runs(clock: Clock) -> RunStore:
    return RunStore(MemoryStore(clock), RUN)


def spoil(runs: RunStore, key: str, damage: Damage) -> None:
    runs.store.put(key, damage(runs.store.get(key).body))


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_a_run_stands_on_is_refused_by_name(runs: RunStore, damage: Damage) -> None:
    runs.create(records.description())
    etag = runs.create_head(records.head())
    key = runs.write_step(records.step_record(1, None))
    runs.write_manifest(records.manifest(1))
    runs.swap_head(records.head(step=1, record=key), etag)
    places = {
        keys.description(RUN): runs.describe,
        keys.head(RUN): runs.read_head,
        key: RunStore(runs.store, RUN).steps,
        keys.policy_manifest(RUN, PolicyVersion(1, 1)): lambda: runs.read_manifest(PolicyVersion(1, 1)),
    }
    for place, read in places.items():
        read()
        whole = runs.store.get(place).body
        spoil(runs, place, damage)
        fresh = RunStore(runs.store, RUN).steps if place == key else read
        with pytest.raises(CorruptObject, match=place):
            fresh()
        runs.store.put(place, whole)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_claim_that_cannot_be_read_is_replaced_and_no_attempt_is_numbered_twice(
    runs: RunStore, clock: Clock, damage: Damage
) -> None:
    mine = runs.claim(0, "a", "task-0", "v1", LEASE_S)
    assert mine is not None
    spoil(runs, keys.claim(RUN, 0), damage)
    other = RunStore(runs.store, RUN)
    theirs = other.claim(0, "b", "task-0", "v1", LEASE_S)
    assert theirs is not None
    assert theirs.attempt > 1000 > mine.attempt
    assert runs.claim(0, "c", "task-0", "v1", LEASE_S) is None, "it is held again"
    clock.now += LEASE_S + 1
    third = runs.claim(0, "c", "task-0", "v1", LEASE_S)
    assert third is not None
    assert third.attempt == theirs.attempt + 1
    assert decode(Claim, runs.store.get(keys.claim(RUN, 0)).body) == third
    group = records.group(0, attempt=third.attempt)
    runs.append_groups("c", 0, [group])
    assert runs.new_groups()[0].trajectories == group.trajectories


@pytest.mark.parametrize("damage", DAMAGE)
def test_reports_and_spans_that_cannot_be_read_are_passed_over(
    runs: RunStore, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    report = OffsetReport(RUN, "a", "x1", 3, 4, 1.0, 2.0, 5, 6, 700, 0.03)
    for cell in ("a", "b"):
        runs.write_offset(replace(report, cell=cell))
        runs.append_spans(cell, 0, [Span("rollout", cell, 1.0, 2.0, 0)])
    spoil(runs, keys.offset(RUN, "a"), damage)
    spoil(runs, keys.timeline(RUN, "a", 0), damage)
    assert [found.cell for found in runs.offsets()] == ["b"]
    assert runs.offset("a") is None
    assert [span.cause for span in runs.spans()] == ["b"]
    assert keys.offset(RUN, "a") in caplog.text
    assert keys.timeline(RUN, "a", 0) in caplog.text


def test_a_report_of_another_run_is_no_report(runs: RunStore) -> None:
    other = RunStore(runs.store, "other")
    other.write_offset(OffsetReport("other", "a", "x1", 3, 4, 1.0, 2.0, 5, 6, 700, 0.03))
    runs.store.put(keys.offset(RUN, "a"), runs.store.get(keys.offset("other", "a")).body)
    assert runs.offsets() == []


def test_an_object_of_groups_that_cannot_be_read_is_tried_twice_then_set_aside_and_its_groups_can_be_claimed(
    runs: RunStore, clock: Clock
) -> None:
    claim = runs.claim(0, "a", "task-0", "v1", LEASE_S)
    assert claim is not None
    first = runs.append_groups("a", 0, [records.group(0)])
    runs.append_groups("a", 1, [records.group(1)])
    spoil(runs, first, truncated)
    before = runs.store.requests["get"]
    cursor = runs.trajectory_cursor()
    assert [group.number for group in cursor.poll()] == [1]
    assert runs.store.requests["get"] == before + 3
    assert [*cursor.damaged] == [first]
    assert cursor.positions == {"a": keys.trajectories(RUN, "a", 1)}, "it goes on behind it"
    assert cursor.poll() == []
    clock.now += LEASE_S + 1
    again = RunStore(runs.store, RUN).claim(0, "b", "task-0", "v1", LEASE_S)
    assert again is not None
    assert again.attempt == 2
    assert RunStore(runs.store, RUN).claim(1, "b", "task-1", "v1", LEASE_S) is not None, "nobody had claimed it"


def test_what_was_read_wrongly_once_is_read_right_the_second_time(runs: RunStore) -> None:
    key = runs.append_groups("a", 0, [records.group(0)])
    whole = runs.store.get(key)
    answers = [replace(whole, body=truncated(whole.body)), whole]
    runs.store.get = lambda key: answers.pop(0)  # type: ignore[method-assign]
    cursor = runs.trajectory_cursor()
    assert [group.number for group in cursor.poll()] == [0]
    assert cursor.damaged == {}


def test_objects_set_aside_before_are_not_asked_for_again(runs: RunStore) -> None:
    key = runs.append_groups("a", 0, [records.group(0)])
    cursor = runs.trajectory_cursor(skip=[key])
    before = runs.store.requests["get"]
    assert cursor.poll() == []
    assert runs.store.requests["get"] == before
    assert cursor.positions == {"a": key}


@pytest.mark.parametrize(
    ("record", "kind"), [(records.head(), Head), (records.step_record(1, None), StepRecord)], ids=["head", "step"]
)
def test_a_format_that_is_no_number_is_no_reason_to_fall_over(record: object, kind: type[object]) -> None:
    body = json.dumps(json.loads(encode(record)) | {"format": "one"}).encode()
    with pytest.raises(CorruptObject, match="the place is not a"):
        decode(kind, body, key="the place")


def test_the_account_of_a_damaged_metadata_is_damage(runs: RunStore) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    body = encode_groups(RUN, [records.group(0)])
    table = pq.read_table(pa.BufferReader(body))
    table = table.replace_schema_metadata({**table.schema.metadata, b"driftline.account": b"{nothing"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    runs.store.put(keys.trajectories(RUN, "a", 0), sink.getvalue().to_pybytes())
    cursor = runs.trajectory_cursor()
    assert cursor.poll() == []
    assert "is not JSON" in cursor.damaged[keys.trajectories(RUN, "a", 0)]
