"""Following a run: every record once, forks, gaps, damage, and a bound on memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftline.errors import CorruptObject, ObjectMissing, StoreUnavailable
from driftline.offsets.chain import StepChain
from driftline.offsets.reader import RunReader, RunsReader
from driftline.offsets.recent_spans import RecentSpans
from driftline.records import PolicyVersion, encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.protocol import StoredObject
from driftline.store.run_store import RunStore
from tests.support import offset_runs

SMALL: Any = {"groups": 2, "members": 2}


def reads(store: MemoryStore) -> int:
    return store.requests["get"]


def test_a_step_is_fetched_once_and_a_new_one_costs_one_read():
    store = MemoryStore()
    offset_runs.write_run(store, "r", 40, **SMALL)
    chain = StepChain(store, "r")
    before = reads(store)
    chain.advance(offset_runs.head("r", 40))
    assert reads(store) - before == 41  # 40 records; the newest is read for itself and by the listing.
    chain.advance(offset_runs.head("r", 40))
    assert reads(store) - before == 41
    offset_runs.commit(store, next(offset_runs.records("r", 41, first=41, **SMALL)))
    before = reads(store)
    chain.advance(offset_runs.head("r", 41))
    assert reads(store) - before == 1
    assert [step.step for step in chain.steps] == list(range(1, 42))


def test_records_of_a_lost_epoch_are_not_in_the_chain():
    store = MemoryStore()
    run_store = offset_runs.write_run(store, "r", 20, **SMALL)
    stray = replace(offset_runs.record("r", 20, keys.step("r", 19, 1), k3=9.0, **SMALL), epoch=2)
    run_store.write_step(stray)
    chain = StepChain(store, "r")
    chain.advance(offset_runs.head("r", 20))
    assert [step.epoch for step in chain.steps] == [1] * 20
    assert chain.key_of(39) == keys.step("r", 20, 1)


def test_a_chain_that_turns_off_is_followed_from_where_it_does():
    store = MemoryStore()
    run_store = offset_runs.write_run(store, "r", 5, **SMALL)
    chain = StepChain(store, "r")
    chain.advance(offset_runs.head("r", 5))
    other = replace(offset_runs.record("r", 4, keys.step("r", 3, 1), k3=0.5, **SMALL), epoch=2)
    key = run_store.write_step(other)
    chain.advance(offset_runs.head("r", 4, record=key, epoch=2))
    assert [(step.step, step.epoch) for step in chain.steps] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert chain.key_of(8) is None  # Of step 5, which is no longer on the chain.


def test_only_the_last_steps_are_kept():
    store = MemoryStore()
    offset_runs.write_run(store, "r", 30, **SMALL)
    chain = StepChain(store, "r", most_steps=10)
    chain.advance(offset_runs.head("r", 30))
    assert [step.step for step in chain.steps] == list(range(21, 31))
    offset_runs.commit(store, next(offset_runs.records("r", 31, first=31, **SMALL)))
    chain.advance(offset_runs.head("r", 31))
    assert [step.step for step in chain.steps] == list(range(22, 32))
    assert chain.key_of(0) is None


@pytest.mark.parametrize("steps", [5, 40])
def test_a_record_that_cannot_be_read_is_named(steps: int):
    store = MemoryStore()
    offset_runs.write_run(store, "r", steps, **SMALL)
    store.put(keys.step("r", 3, 1), b'{"step": 3')
    chain = StepChain(store, "r")
    with pytest.raises(CorruptObject, match=r"steps/000003-0001\.json is not JSON"):
        chain.advance(offset_runs.head("r", steps))
    assert chain.steps == ()


def test_records_in_a_circle_are_refused():
    store = MemoryStore()
    RunStore(store, "r").write_step(replace(offset_runs.record("r", 2, keys.step("r", 2, 1), **SMALL)))
    with pytest.raises(CorruptObject, match="not older"):
        StepChain(store, "r").advance(offset_runs.head("r", 2))


def test_a_run_before_its_first_head_and_step_is_a_view_without_steps():
    store = MemoryStore()
    run_store = RunStore(store, "r")
    run_store.create(offset_runs.description("r"))
    reader = RunReader(store, "r")
    assert reader.read().head is None
    run_store.create_head(offset_runs.head("r", 0, version=PolicyVersion(0, 1)))
    view = reader.read()
    assert (view.version, view.steps, view.latest) == (0, (), None)


def test_a_run_that_is_deleted_is_gone_and_another_of_its_name_is_another():
    store = MemoryStore()
    offset_runs.write_run(store, "r", 5, **SMALL)
    reader = RunReader(store, "r")
    assert len(reader.read().steps) == 5
    store.delete([info.key for info in store.list("runs/r/")])
    with pytest.raises(ObjectMissing, match="no run 'r'"):
        reader.read()
    RunStore(store, "r").create(offset_runs.description("r", created=5.0))
    view = reader.read()
    assert view.description.created_unix == 5.0
    assert view.steps == ()


def test_another_run_of_the_same_name_is_told_by_who_holds_its_epoch():
    """Deleted and made again between two looks, and as far as the first one: only its trainer is another."""
    store = MemoryStore()
    offset_runs.write_run(store, "r", 2, groups=1, members=1, created=1.0)
    store.put(keys.head("r"), encode(offset_runs.head("r", 2, holder="one")))
    reader = RunReader(store, "r")
    assert reader.read().description.created_unix == 1.0
    store.delete([info.key for info in store.list("runs/r/")])
    offset_runs.write_run(store, "r", 2, groups=1, members=1, created=2.0)
    store.put(keys.head("r"), encode(offset_runs.head("r", 2, holder="another")))
    assert reader.read().description.created_unix == 2.0


def spans_of(store: MemoryStore) -> tuple[RecentSpans, RunStore]:
    run_store = offset_runs.write_run(store, "r", 0)
    run_store.append_spans("cell-c0", 0, offset_runs.spans(1)[:1])
    run_store.append_spans("trainer-0001", 0, offset_runs.spans(1)[1:3])
    return RecentSpans(run_store), run_store


def test_an_outage_in_the_middle_loses_no_part_of_the_timeline():
    class Outage(MemoryStore):
        down = False

        def get(self, key: str) -> StoredObject:
            if self.down and "trainer" in key:
                raise StoreUnavailable("away")
            return super().get(key)

    store = Outage()
    recent, _ = spans_of(store)
    store.down = True
    with pytest.raises(StoreUnavailable):
        recent.read()
    store.down = False
    assert [span.lane for span in recent.read()] == ["rollout", "training", "publish"]


def test_a_stretch_that_is_collected_meanwhile_is_passed_over():
    class Gone(MemoryStore):
        def get(self, key: str) -> StoredObject:
            if "trainer" in key:
                raise ObjectMissing(key)
            return super().get(key)

    recent, _ = spans_of(Gone())
    assert [span.lane for span in recent.read()] == ["rollout"]


def test_spans_are_known_apart_by_what_was_read_of_them():
    """A late stretch may begin before the newest one, and fall out of the count that is kept."""
    recent, run_store = spans_of(MemoryStore())
    assert recent.newest == ()
    recent.read()
    before = recent.newest
    recent.read()
    assert recent.newest == before
    run_store.append_spans("cell-c0", 1, [offset_runs.spans(0)[0]])
    recent.read()
    assert recent.newest != before


def test_the_list_of_runs_is_newest_first_and_says_what_it_cannot_read():
    store = MemoryStore()
    for number, name in enumerate("abc"):
        offset_runs.write_run(store, name, 1, created=float(number), **SMALL)
    store.put(keys.head("b"), encode(offset_runs.head("b", 1)).replace(b'"format":1', b'"format":99'))
    store.put("runs/strange/claims/0.json", b"{}")
    reader = RunsReader(store, most_runs=2)
    reader.read()
    before = reads(store)
    found = reader.read()
    assert [(entry.run, entry.head is None) for entry in found] == [("c", False), ("b", True)]
    assert "newer format 99" in found[1].trouble
    assert reads(store) - before == 3  # Two heads, and whether the strange one has become a run.
