"""How store time is added up: calls that overlap count once."""

from __future__ import annotations

import threading

import pytest

from driftline.errors import ObjectMissing
from driftline.store.memory import MemoryStore
from driftline.store.meter import MeteredStore
from driftline.store.protocol import StoredObject


class Slow(MemoryStore):
    """Its reads take as long as they are told to, on a clock of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def get(self, key: str) -> StoredObject:
        if key == "waits":
            self.entered.release()
            assert self.go_on.wait(10.0)
        else:
            self.now += 2.0
        return super().get(key)


def test_calls_one_after_the_other_add_up_even_those_that_fail() -> None:
    store = Slow()
    metered = MeteredStore(store, lambda: store.now)
    store.put("a", b"x")
    assert metered.get("a").body == b"x"
    store.now += 50.0
    with pytest.raises(ObjectMissing):
        metered.get("b")
    assert metered.seconds == 4.0


def test_calls_that_overlap_count_once_also_while_they_are_under_way() -> None:
    store = Slow()
    metered = MeteredStore(store, lambda: store.now)
    store.put("waits", b"x")
    threads = [threading.Thread(target=metered.get, args=("waits",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert store.entered.acquire(timeout=10.0)
    store.now += 7.0
    assert metered.seconds == 7.0
    store.go_on.set()
    for thread in threads:
        thread.join()
    assert metered.seconds == 7.0


def test_every_operation_goes_to_the_store_beneath() -> None:
    store = MemoryStore()
    metered = MeteredStore(store)
    etag = metered.create("f/a", b"1").etag
    etag = metered.swap("f/a", b"2", etag).etag
    assert metered.get_if_changed("f/a", etag) is None
    metered.put("f/b", b"3")
    assert [info.key for info in metered.list("f/", after="f/a")] == ["f/b"]
    assert metered.folders("") == ["f"]
    metered.delete(["f/a"])
    assert [info.key for info in store.list("f/")] == ["f/b"]
    assert metered.requests == store.requests
    assert metered.requests.total() == 8
