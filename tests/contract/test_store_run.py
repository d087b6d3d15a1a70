"""What one run's objects guarantee, over the real store and the one in memory."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from driftline.errors import CorruptObject, EpochLost, ObjectMissing, PreconditionFailed
from driftline.records import Claim, EvaluationResult, Head, OffsetReport, PolicyVersion, Span
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.protocol import ObjectStore, WriteResult
from driftline.store.run_store import RunStore, list_runs
from tests.support import records

LEASE_S = 20.0


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("s3_store")


@pytest.fixture
def runs(store: ObjectStore) -> RunStore:
    return RunStore(store, f"run-{uuid.uuid4().hex[:12]}")


def test_a_run_is_described_once(runs: RunStore) -> None:
    with pytest.raises(ObjectMissing, match=runs.run):
        runs.describe()
    described = records.description(runs.run)
    runs.create(described)
    runs.create(described)
    assert runs.describe() == described
    with pytest.raises(PreconditionFailed, match="choose another name"):
        runs.create(replace(described, code_version="0.2.0"))
    assert runs.describe() == described


def test_runs_are_listed_oldest_first(store: ObjectStore) -> None:
    names = [f"run-{uuid.uuid4().hex[:12]}" for _ in range(3)]
    for name, created in zip(names, (30.0, 10.0, 20.0), strict=True):
        RunStore(store, name).create(records.description(name, created_unix=created))
    store.put(f"runs/{names[0]}-unfinished/HEAD", b"{}")
    assert [run for run in list_runs(store) if run in names] == [names[1], names[2], names[0]]
    assert f"{names[0]}-unfinished" not in list_runs(store)


def test_a_follower_of_the_head_hears_of_changes_only(runs: RunStore) -> None:
    runs.create_head(records.head())
    with pytest.raises(PreconditionFailed):
        runs.create_head(records.head(step=7))
    found, etag = runs.read_head()
    assert found == records.head()
    assert runs.head_if_changed(etag) is None
    new_etag = runs.swap_head(records.head(spent=3), etag)
    assert runs.head_if_changed(etag) == (records.head(spent=3), new_etag)
    with pytest.raises(PreconditionFailed):
        runs.swap_head(records.head(spent=4), etag)


def test_a_commit_moves_the_head_of_the_lease(runs: RunStore) -> None:
    runs.create_head(records.head())
    lease = runs.take_epoch()
    holder = lease.head.holder
    assert (lease.epoch, lease.head) == (1, records.head(epoch=1, holder=holder))
    for step in (1, 2):
        lease.commit(replace(lease.head, step=step))
        assert runs.read_head()[0] == lease.head == records.head(epoch=1, step=step, holder=holder)


def test_an_older_trainer_can_commit_nothing_more(runs: RunStore) -> None:
    runs.create_head(records.head())
    older = runs.take_epoch()
    newer = runs.take_epoch()
    assert (older.epoch, newer.epoch) == (1, 2)
    with pytest.raises(EpochLost, match="epoch 2, this one has 1"):
        older.commit(replace(older.head, step=1))
    assert runs.read_head()[0] == newer.head
    newer.commit(replace(newer.head, step=1))
    with pytest.raises(EpochLost):
        older.commit(replace(older.head, step=1))
    assert older.head.step == 0


def test_a_head_of_another_epoch_cannot_be_committed(runs: RunStore) -> None:
    runs.create_head(records.head())
    lease = runs.take_epoch()
    with pytest.raises(ValueError, match="epoch 9"):
        lease.commit(replace(lease.head, epoch=9))


def test_a_lost_swap_that_had_landed_is_a_commit(runs: RunStore) -> None:
    runs.create_head(records.head())
    lease = runs.take_epoch()
    new = replace(lease.head, step=1)
    _, etag = runs.read_head()
    runs.swap_head(new, etag)
    lease.commit(new)
    lease.commit(replace(new, step=2))
    assert runs.read_head()[0].step == 2


def test_a_head_changed_behind_the_lease_is_no_commit(runs: RunStore) -> None:
    runs.create_head(records.head())
    lease = runs.take_epoch()
    found, etag = runs.read_head()
    runs.swap_head(replace(found, spent=5), etag)
    with pytest.raises(PreconditionFailed, match="changed by no trainer"):
        lease.commit(replace(lease.head, step=1))


def test_racing_trainers_get_different_epochs(runs: RunStore) -> None:
    runs.create_head(records.head())
    with ThreadPoolExecutor(4) as pool:
        leases = list(pool.map(lambda _: runs.take_epoch(), range(4)))
    assert sorted(lease.epoch for lease in leases) == [1, 2, 3, 4]
    assert runs.read_head()[0].epoch == 4


def test_a_trainer_whose_request_was_lost_does_not_take_anothers_head_for_its_own(
    runs: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated swap that finds its own bytes counts as done, so the bytes of two trainers have to differ."""
    runs.create_head(records.head())
    late = RunStore(runs.store, runs.run)
    seen, swap = [runs.read_head()], runs.store.swap

    def repeated(key: str, body: bytes, etag: str) -> WriteResult:
        try:
            return swap(key, body, etag)
        except PreconditionFailed:
            found = runs.store.get(key)
            if found.body == body:
                return WriteResult(found.etag, found.store_unix)
            raise

    first = runs.take_epoch()
    monkeypatch.setattr(runs.store, "swap", repeated)
    read_head = late.read_head
    monkeypatch.setattr(late, "read_head", lambda: seen.pop() if seen else read_head())
    second = late.take_epoch()
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(EpochLost):
        first.commit(replace(first.head, step=1))


def test_a_run_ends_once(runs: RunStore) -> None:
    runs.create_head(records.head())
    lease = runs.take_epoch()
    ended = runs.end("failed", "the disk is full")
    assert (ended.state, ended.reason, ended.epoch) == ("failed", "the disk is full", 2)
    assert runs.end("finished") == ended == runs.read_head()[0]
    with pytest.raises(EpochLost):
        lease.commit(replace(lease.head, step=1))


def test_a_manifest_is_written_once(runs: RunStore) -> None:
    manifest = records.manifest(3, run=runs.run)
    with pytest.raises(ObjectMissing):
        runs.read_manifest(manifest.version)
    key = runs.write_manifest(manifest)
    assert runs.write_manifest(manifest) == key == keys.policy_manifest(runs.run, PolicyVersion(3, 1))
    with pytest.raises(PreconditionFailed, match="other contents"):
        runs.write_manifest(replace(manifest, kind="delta"))
    assert runs.read_manifest(manifest.version) == manifest


def test_a_manifest_under_a_wrong_key_is_refused(runs: RunStore) -> None:
    body = runs.store.get(runs.write_manifest(records.manifest(3, run=runs.run))).body
    runs.store.put(keys.policy_manifest(runs.run, PolicyVersion(4, 1)), body)
    with pytest.raises(CorruptObject, match="describes version 000003-0001"):
        runs.read_manifest(PolicyVersion(4, 1))


def test_steps_are_those_that_the_head_reaches(runs: RunStore) -> None:
    runs.create_head(records.head())
    assert runs.steps() == []
    first = runs.write_step(one := records.step_record(1, None, run=runs.run, groups=(0, 1)))
    runs.write_step(records.step_record(2, first, run=runs.run))
    second = runs.write_step(two := records.step_record(2, first, epoch=2, run=runs.run))
    _, etag = runs.read_head()
    runs.swap_head(records.head(record=second), etag)
    assert runs.steps() == [one, two]
    assert runs.read_step(first) == one


def test_many_steps_are_fetched_together_and_those_that_no_head_reaches_do_not_matter(runs: RunStore) -> None:
    runs.create_head(records.head())
    key, written = None, []
    for number in range(1, 41):
        written.append(records.step_record(number, key, run=runs.run, groups=(number,)))
        key = runs.write_step(written[-1])
    runs.write_step(records.step_record(7, None, epoch=3, run=runs.run))
    runs.store.put(keys.step(runs.run, 41, 9), b"half a rec")
    runs.swap_head(records.head(step=40, record=key), runs.read_head()[1])
    reader = RunStore(runs.store, runs.run)
    assert reader.steps() == written
    before = reader.store.requests.total()
    assert reader.steps() == written
    assert reader.store.requests.total() == before + 1, "records never change"


def test_a_chain_of_steps_that_does_not_descend_is_refused(runs: RunStore) -> None:
    key = keys.step(runs.run, 1, 1)
    runs.write_step(records.step_record(1, key, run=runs.run))
    runs.create_head(records.head(record=key))
    with pytest.raises(CorruptObject, match="not older"):
        runs.steps()


def test_records_of_another_run_are_refused(runs: RunStore) -> None:
    with pytest.raises(CorruptObject, match="belongs to run 'other'"):
        runs.write_step(records.step_record(1, None, run="other"))
    with pytest.raises(CorruptObject, match="belongs to run 'other'"):
        runs.write_manifest(records.manifest(1, run="other"))
    stray = RunStore(runs.store, f"other-{runs.run}")
    body = runs.store.get(stray.write_step(records.step_record(1, None, run=stray.run))).body
    runs.store.put(keys.step(runs.run, 1, 1), body)
    with pytest.raises(CorruptObject, match=f"belongs to run '{stray.run}'"):
        runs.read_step(keys.step(runs.run, 1, 1))


def test_a_held_claim_is_nobody_elses(runs: RunStore) -> None:
    mine = runs.claim(3, "a", "task", "v1", LEASE_S)
    assert mine is not None
    assert (mine.group, mine.cell, mine.attempt, mine.task_id, mine.task_set) == (3, "a", 1, "task", "v1")
    assert RunStore(runs.store, runs.run).claim(3, "b", "task", "v1", LEASE_S) is None
    assert runs.claim(3, "a", "task", "v1", LEASE_S) is None
    renewed = runs.renew(mine, LEASE_S)
    assert renewed.expires_unix >= mine.expires_unix
    assert runs.renew(renewed, LEASE_S).attempt == 1


def test_a_lease_is_reckoned_by_the_stores_clock(runs: RunStore) -> None:
    written = runs.store.put(keys.offset(runs.run, "x"), b"{}")
    mine = runs.claim(0, "a", "task", "v1", LEASE_S)
    assert mine is not None
    assert LEASE_S - 0.1 <= mine.expires_unix - written.store_unix <= LEASE_S + 5


def test_of_racing_cells_one_gets_the_claim(runs: RunStore) -> None:
    cells = [RunStore(runs.store, runs.run) for _ in range(4)]
    start = Barrier(len(cells))

    def claim(index: int) -> Claim | None:
        start.wait()
        return cells[index].claim(0, f"cell-{index}", "task", "v1", LEASE_S)

    with ThreadPoolExecutor(len(cells)) as pool:
        claims = [c for c in pool.map(claim, range(len(cells))) if c is not None]
    assert len(claims) == 1
    stored = runs.store.get(keys.claim(runs.run, 0))
    assert f'"cell":"{claims[0].cell}"'.encode() in stored.body


def test_a_released_claim_passes_on_with_its_task(runs: RunStore) -> None:
    mine = runs.claim(0, "a", "task", "v1", LEASE_S)
    assert mine is not None
    runs.release(mine)
    other = RunStore(runs.store, runs.run)
    taken = other.claim(0, "b", "another task", "v2", LEASE_S)
    assert taken is not None
    assert (taken.cell, taken.attempt, taken.task_id, taken.task_set) == ("b", 2, "task", "v1")
    with pytest.raises(PreconditionFailed, match="group 0"):
        runs.renew(mine, LEASE_S)
    runs.release(mine)
    assert other.renew(taken, LEASE_S).cell == "b"


def test_a_finished_group_is_never_claimed_again(runs: RunStore) -> None:
    mine = runs.claim(0, "a", "task-0", "v1", LEASE_S)
    assert mine is not None
    runs.append_groups("a", 0, [records.group(0, run=runs.run)])
    runs.release(mine)
    assert RunStore(runs.store, runs.run).claim(0, "b", "task-0", "v1", LEASE_S) is None


def test_a_cursor_follows_all_cells(runs: RunStore) -> None:
    cursor = runs.trajectory_cursor()
    assert cursor.poll() == []
    first = runs.append_groups("a", 0, [records.group(1, run=runs.run), records.group(0, run=runs.run)])
    assert [(g.number, g.key) for g in cursor.poll()] == [(0, first), (1, first)]
    assert cursor.poll() == []
    second = runs.append_groups("b", 0, [records.group(2, run=runs.run)])
    third = runs.append_groups("a", 1, [records.group(3, run=runs.run)])
    found = cursor.poll()
    assert [(g.number, g.key) for g in found] == [(2, second), (3, third)]
    assert found[0] == replace(records.group(2, run=runs.run), key=second)
    assert cursor.positions == {"a": third, "b": second}
    assert [g.number for g in runs.new_groups({"a": first})] == [2, 3]
    assert [g.number for g in runs.new_groups()] == [0, 1, 2, 3]


def test_a_group_counts_once(runs: RunStore) -> None:
    cursor = runs.trajectory_cursor()
    late = runs.append_groups("a", 0, [records.group(0, run=runs.run, attempt=2)])
    early = runs.append_groups("b", 0, [records.group(0, run=runs.run, attempt=1)])
    assert [(g.number, g.key) for g in cursor.poll()] == [(0, early)]
    again = runs.append_groups("c", 0, [records.group(0, run=runs.run, attempt=1), records.group(1, run=runs.run)])
    assert [g.number for g in cursor.poll()] == [1]
    assert [(d.group, d.key, d.sampled_tokens) for d in cursor.duplicates] == [(0, late, 6), (0, again, 6)]


def test_an_object_that_lands_late_is_read(runs: RunStore) -> None:
    cursor = runs.trajectory_cursor()
    runs.append_groups("a", 0, [records.group(0, run=runs.run)])
    runs.append_groups("a", 2, [records.group(2, run=runs.run)])
    assert [g.number for g in cursor.poll()] == [0, 2]
    assert cursor.positions == {"a": keys.trajectories(runs.run, "a", 0)}
    assert cursor.poll() == []
    runs.append_groups("a", 1, [records.group(1, run=runs.run)])
    assert [g.number for g in cursor.poll()] == [1]
    assert cursor.positions == {"a": keys.trajectories(runs.run, "a", 2)}
    assert cursor.duplicates == []


def test_a_second_writer_of_a_cells_name_is_found(runs: RunStore) -> None:
    runs.append_groups("a", 0, [records.group(0, run=runs.run)])
    runs.append_groups("a", 0, [records.group(0, run=runs.run)])
    with pytest.raises(PreconditionFailed, match="another process"):
        runs.append_groups("a", 0, [records.group(1, run=runs.run)])
    assert runs.next_sequence("a") == 1
    assert runs.next_sequence("b") == 0


def test_trajectories_of_another_run_are_refused(runs: RunStore) -> None:
    other = RunStore(runs.store, f"other-{runs.run}")
    body = runs.store.get(other.append_groups("a", 0, [records.group(0, run=other.run)])).body
    key = keys.trajectories(runs.run, "a", 0)
    runs.store.put(key, body)
    cursor = runs.trajectory_cursor()
    assert cursor.poll() == []
    assert f"{key} belongs to run '{other.run}'" in cursor.damaged[key]


def test_the_newest_offset_of_each_cell_stands(runs: RunStore) -> None:
    report = OffsetReport(runs.run, "a", "x1", 3, 4, 1.0, 2.0, 5, 6, 700, 0.03)
    for one in (report, replace(report, version=4), replace(report, cell="b")):
        runs.write_offset(one)
    assert runs.offsets() == [replace(report, version=4), replace(report, cell="b")]


def test_spans_of_all_processes_come_in_order_of_time(runs: RunStore) -> None:
    spans = [Span("training", "train", float(s), s + 0.5, 1, {"k": "v"}) for s in (3, 1, 2)]
    runs.append_spans("trainer-x", 0, spans[:1])
    runs.append_spans("cell-y", 0, spans[1:2])
    runs.append_spans("trainer-x", 1, spans[2:])
    assert runs.spans() == [spans[1], spans[2], spans[0]]
    with pytest.raises(PreconditionFailed):
        runs.append_spans("cell-y", 0, spans)


def test_evaluations_are_kept_by_version(runs: RunStore) -> None:
    ten = EvaluationResult(10, 256, 256, 0.75, 0.7, 0, 12.0)
    zero = replace(ten, version=0, success=0.4)
    for one in (ten, replace(zero, success=0.1), zero):
        runs.write_evaluation(one)
    assert runs.evaluations() == [zero, ten]


def test_a_head_of_a_newer_format_is_refused(runs: RunStore) -> None:
    runs.create_head(Head(0, 0, None, None, 0, (), 16, (), format=2))
    with pytest.raises(CorruptObject, match="upgrade driftline"):
        runs.read_head()
