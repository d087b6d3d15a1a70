"""What every object store must do, over the real one (SeaweedFS) and the one in memory."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from driftline.errors import ObjectMissing, PreconditionFailed
from driftline.store.client import probe_conditional_writes
from driftline.store.memory import MemoryStore
from driftline.store.protocol import ObjectStore, WriteResult

RACERS = 8


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("s3_store")


@pytest.fixture
def prefix() -> str:
    return f"contract/{uuid.uuid4().hex}/"


def race(writes: list[Callable[[], WriteResult]]) -> list[int]:
    """Carry out all writes at once; returns the indices of those that were accepted."""
    start = Barrier(len(writes))

    def one(write: Callable[[], WriteResult]) -> bool:
        start.wait()
        try:
            write()
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(len(writes)) as pool:
        return [index for index, won in enumerate(pool.map(one, writes)) if won]


def test_what_is_put_is_read_back_whole(store: ObjectStore, prefix: str) -> None:
    body = os.urandom(300_000)
    written = store.put(f"{prefix}a", body)
    found = store.get(f"{prefix}a")
    assert (found.key, found.body, found.etag) == (f"{prefix}a", body, written.etag)


def test_an_empty_body_is_an_object(store: ObjectStore, prefix: str) -> None:
    store.put(f"{prefix}empty", b"")
    assert store.get(f"{prefix}empty").body == b""


def test_put_replaces_and_the_tag_follows_the_contents(store: ObjectStore, prefix: str) -> None:
    first = store.put(f"{prefix}a", b"one")
    second = store.put(f"{prefix}a", b"two")
    again = store.put(f"{prefix}a", b"one")
    assert first.etag == again.etag != second.etag
    assert store.get(f"{prefix}a").body == b"one"


def test_a_missing_object_is_told_by_its_key(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(ObjectMissing, match=f"{prefix}nothing"):
        store.get(f"{prefix}nothing")
    with pytest.raises(ObjectMissing, match=f"{prefix}nothing"):
        store.get_if_changed(f"{prefix}nothing", '"0"')


def test_an_unchanged_object_is_not_sent_again(store: ObjectStore, prefix: str) -> None:
    written = store.put(f"{prefix}a", b"one")
    assert store.get_if_changed(f"{prefix}a", written.etag) is None
    store.put(f"{prefix}a", b"two")
    changed = store.get_if_changed(f"{prefix}a", written.etag)
    assert changed is not None
    assert changed.body == b"two"


def test_create_never_replaces(store: ObjectStore, prefix: str) -> None:
    created = store.create(f"{prefix}a", b"one")
    with pytest.raises(PreconditionFailed, match=f"{prefix}a"):
        store.create(f"{prefix}a", b"two")
    with pytest.raises(PreconditionFailed):
        store.create(f"{prefix}a", b"one")
    found = store.get(f"{prefix}a")
    assert (found.body, found.etag) == (b"one", created.etag)


def test_create_works_again_after_a_deletion(store: ObjectStore, prefix: str) -> None:
    store.create(f"{prefix}a", b"one")
    store.delete([f"{prefix}a"])
    store.create(f"{prefix}a", b"two")
    assert store.get(f"{prefix}a").body == b"two"


def test_swap_replaces_only_what_was_read(store: ObjectStore, prefix: str) -> None:
    first = store.put(f"{prefix}a", b"one")
    second = store.swap(f"{prefix}a", b"two", first.etag)
    with pytest.raises(PreconditionFailed, match=f"{prefix}a"):
        store.swap(f"{prefix}a", b"three", first.etag)
    assert store.get(f"{prefix}a").body == b"two"
    store.swap(f"{prefix}a", b"four", second.etag)
    assert store.get(f"{prefix}a").body == b"four"


def test_swap_of_what_is_gone_fails_and_creates_nothing(store: ObjectStore, prefix: str) -> None:
    written = store.put(f"{prefix}a", b"one")
    store.delete([f"{prefix}a"])
    with pytest.raises(PreconditionFailed):
        store.swap(f"{prefix}a", b"two", written.etag)
    with pytest.raises(ObjectMissing):
        store.get(f"{prefix}a")


def test_of_racing_creations_one_wins(store: ObjectStore, prefix: str) -> None:
    for turn in range(3):
        key = f"{prefix}{turn}"
        winners = race([lambda key=key, i=i: store.create(key, f"racer {i}".encode()) for i in range(RACERS)])
        assert len(winners) == 1
        assert store.get(key).body == f"racer {winners[0]}".encode()


def test_of_racing_swaps_one_wins(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}head"
    etag = store.put(key, b"start").etag
    for turn in range(4):
        bodies = [f"turn {turn}, racer {i}".encode() for i in range(RACERS)]
        winners = race([lambda body=body, etag=etag: store.swap(key, body, etag) for body in bodies])
        assert len(winners) == 1
        found = store.get(key)
        assert found.body == bodies[winners[0]]
        etag = found.etag


def test_racing_counters_lose_no_increment(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}count"
    store.put(key, b"0")

    def add(_: int) -> None:
        while True:
            found = store.get(key)
            try:
                store.swap(key, str(int(found.body) + 1).encode(), found.etag)
            except PreconditionFailed:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    assert store.get(key).body == b"20"


def test_list_is_sorted_and_starts_after(store: ObjectStore, prefix: str) -> None:
    names = [f"cell/{i:08d}.parquet" for i in (3, 0, 2, 1)]
    for name in names:
        store.put(f"{prefix}{name}", b"x" * 7)
    store.put(f"{prefix}elsewhere/0", b"")
    listed = list(store.list(f"{prefix}cell/"))
    assert [info.key for info in listed] == [f"{prefix}{name}" for name in sorted(names)]
    assert {info.bytes for info in listed} == {7}
    after = list(store.list(f"{prefix}cell/", after=f"{prefix}cell/00000001.parquet"))
    assert [info.key[-10:] for info in after] == ["02.parquet", "03.parquet"]
    assert list(store.list(f"{prefix}cell/", after=f"{prefix}cell/00000003.parquet")) == []
    assert list(store.list(f"{prefix}nothing/")) == []


def test_list_goes_beyond_one_page(store: ObjectStore, prefix: str) -> None:
    keys = [f"{prefix}many/{i:05d}" for i in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert [info.key for info in store.list(f"{prefix}many/")] == keys
    store.delete(keys)
    assert list(store.list(f"{prefix}many/")) == []


def test_folders_are_the_names_up_to_the_next_slash(store: ObjectStore, prefix: str) -> None:
    for name in ("b/1", "b/2", "a/deep/1", "c-0/1", "c/1", "file"):
        store.put(f"{prefix}{name}", b"")
    assert store.folders(prefix) == ["a", "b", "c", "c-0"]
    assert store.folders(f"{prefix}nothing/") == []


def test_delete_passes_over_what_is_not_there(store: ObjectStore, prefix: str) -> None:
    store.put(f"{prefix}a", b"")
    store.put(f"{prefix}b", b"")
    store.delete([f"{prefix}a", f"{prefix}nothing"])
    store.delete([])
    assert [info.key for info in store.list(prefix)] == [f"{prefix}b"]


def test_the_stores_clock_is_near_the_machines(store: ObjectStore, prefix: str) -> None:
    before = time.time()
    written = store.put(f"{prefix}a", b"")
    read = store.get(f"{prefix}a")
    assert before - 1.5 <= written.store_unix <= read.store_unix <= time.time() + 0.1
    assert abs(next(store.list(prefix)).modified_unix - before) < 5


def test_conditional_writes_are_found_to_work(store: ObjectStore) -> None:
    probe_conditional_writes(store)
    assert list(store.list("probe/")) == []
