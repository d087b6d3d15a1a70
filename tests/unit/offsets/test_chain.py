"""Following a run: every record once, forks, gaps, damage, and a bound on memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftline.errors import CorruptObject, ObjectMissing
from driftline.offsets.chain import StepChain
from driftline.offsets.reader import RunReader, RunsReader
from driftline.records import PolicyVersion, encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
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
