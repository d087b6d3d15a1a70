"""The store is killed under its clients: they wait, and nothing that was accepted is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from driftline.errors import StoreUnavailable
from driftline.store.client import S3Store, probe_conditional_writes
from tests.support.seaweed import Seaweed, running_seaweed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A server of this module's own, which the tests may kill."""
    with running_seaweed(tmp_path_factory.mktemp("mortal")) as server:
        yield server


def test_a_client_outlives_a_restart_of_the_store(server: Seaweed) -> None:
    store = server.store(patience_s=60.0)
    etag = store.create("outage/head", b"0").etag
    written: list[int] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def write() -> None:
        tag = etag
        try:
            while not stop.is_set():
                tag = store.swap("outage/head", str(len(written) + 1).encode(), tag).etag
                written.append(len(written) + 1)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: len(written) > 20)
        server.stop()
        before = len(written)
        server.start()
        wait_for(lambda: len(written) > before + 20 or bool(failed))
    finally:
        stop.set()
        writer.join(60)
    assert failed == []
    assert store.get("outage/head").body == str(len(written)).encode()


def test_a_missing_bucket_is_told_at_once_with_the_remedy(server: Seaweed) -> None:
    store = S3Store("no-such-bucket", endpoint=server.endpoint, patience_s=60.0)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="DRIFTLINE_BUCKET"):
        probe_conditional_writes(store)
    for attempt in (lambda: store.get("a"), lambda: list(store.list("a/")), lambda: store.delete(["a"])):
        with pytest.raises(StoreUnavailable, match="'no-such-bucket'"):
            attempt()
    assert time.monotonic() - began < 10


def test_wrong_credentials_are_told_at_once(server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreUnavailable, match=r"access was refused .*: check the S3 credentials"):
        server.store().put("a", b"")


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.02)
