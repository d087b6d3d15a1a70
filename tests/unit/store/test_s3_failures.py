"""What the S3 client does when the store fails: retries, lost answers, and messages that say the remedy."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from driftline.errors import ConfigurationError, ObjectMissing, PreconditionFailed, StoreUnavailable
from driftline.params import Settings
from driftline.store.client import S3Store, open_store, probe_conditional_writes
from tests.support.scripted_s3 import Fault, ScriptedS3, serving

SECRET = "a-secret-that-no-message-may-name"


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"id-{SECRET}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


class Clock:
    """Time that only passes by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ScriptedS3, S3Store]]:
    """One server and one connected client for all tests: making a client takes a quarter of a second."""
    script = ScriptedS3()
    with serving(script) as endpoint:
        store = S3Store("bucket", endpoint=endpoint)
        store.put("warm", b"")
        yield script, store


@pytest.fixture
def script(served: tuple[ScriptedS3, S3Store]) -> ScriptedS3:
    served[0].reset()
    return served[0]


@pytest.fixture
def store(served: tuple[ScriptedS3, S3Store], script: ScriptedS3, clock: Clock) -> S3Store:
    store = S3Store("bucket", endpoint=served[1].endpoint, patience_s=30.0, sleep=clock.sleep, clock=clock)
    store._client = served[1]._connected()
    return store


TRANSIENT: tuple[Fault, ...] = ("drop before", (500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests"))


@pytest.mark.parametrize("fault", [*TRANSIENT, "truncate"])
def test_a_read_is_tried_again(store: S3Store, script: ScriptedS3, clock: Clock, fault: Fault) -> None:
    script.objects.put("a", b"whole body")
    script.faults.append(fault)
    script.faults.append(fault)
    assert store.get("a").body == b"whole body"
    assert script.seen == ["GET a"] * 3
    assert store.requests == {"get_object": 3}
    assert len(clock.slept) == 2
    assert 0.05 <= clock.slept[0] <= 0.1
    assert 0.1 <= clock.slept[1] <= 0.2


@pytest.mark.parametrize("fault", TRANSIENT)
def test_patience_ends(store: S3Store, script: ScriptedS3, clock: Clock, fault: Fault) -> None:
    faults: list[Fault] = [fault]
    script.faults.extend(faults * 100)
    with pytest.raises(StoreUnavailable, match="cannot read a in bucket 'bucket'"):
        store.get("a")
    assert 25 < clock.now <= 30
    assert all(seconds <= 2 for seconds in clock.slept)


def test_nothing_is_tried_again_that_cannot_succeed(store: S3Store, script: ScriptedS3, clock: Clock) -> None:
    with pytest.raises(ObjectMissing):
        store.get("a")
    script.objects.put("a", b"")
    with pytest.raises(PreconditionFailed):
        store.create("a", b"mine")
    script.faults.append((403, "AccessDenied"))
    with pytest.raises(StoreUnavailable, match=r"access was refused \(AccessDenied\): check the S3 credentials"):
        store.put("a", b"")
    script.faults.append((404, "NoSuchBucket"))
    with pytest.raises(StoreUnavailable, match="bucket does not exist: create it, or set DRIFTLINE_BUCKET"):
        store.get("a")
    script.faults.append((404, "NoSuchBucket"))
    with pytest.raises(StoreUnavailable, match="bucket does not exist"):
        store.swap("a", b"", '"etag"')
    assert clock.slept == []
    assert len(script.seen) == 5


def test_a_creation_that_landed_without_an_answer_has_succeeded(store: S3Store, script: ScriptedS3) -> None:
    script.faults.append("drop after")
    result = store.create("a", b"mine")
    found = script.objects.get("a")
    assert (found.body, found.etag) == (b"mine", result.etag)
    assert script.seen == ["PUT a", "PUT a", "GET a"]


def test_a_swap_that_landed_without_an_answer_has_succeeded(store: S3Store, script: ScriptedS3) -> None:
    etag = script.objects.put("a", b"old").etag
    script.faults.append("drop after")
    assert store.swap("a", b"mine", etag).etag == script.objects.get("a").etag
    assert script.objects.get("a").body == b"mine"


@pytest.mark.parametrize("operation", ["create", "swap"])
def test_a_retry_that_finds_another_writers_bytes_has_lost(
    store: S3Store, script: ScriptedS3, operation: str
) -> None:
    etag = script.objects.put("a", b"somebody else's").etag if operation == "create" else '"older"'
    script.objects.put("a", b"somebody else's")
    script.faults.append("drop before")
    with pytest.raises(PreconditionFailed):
        store.create("a", b"mine") if operation == "create" else store.swap("a", b"mine", etag)
    assert script.objects.get("a").body == b"somebody else's"


def test_own_bytes_without_a_retry_are_no_success(store: S3Store, script: ScriptedS3) -> None:
    script.objects.put("a", b"mine")
    with pytest.raises(PreconditionFailed):
        store.create("a", b"mine")
    assert script.seen == ["PUT a"]


def test_a_conflict_is_tried_again(store: S3Store, script: ScriptedS3) -> None:
    script.faults.append((409, "ConditionalRequestConflict"))
    store.create("a", b"mine")
    assert script.objects.get("a").body == b"mine"
    script.faults.append((409, "ConditionalRequestConflict"))
    with pytest.raises(PreconditionFailed):
        store.create("a", b"other")


def test_the_probe_leaves_nothing(store: S3Store, script: ScriptedS3) -> None:
    probe_conditional_writes(store)
    assert [line.split()[0] for line in script.seen] == ["GET", *["PUT"] * 4, "POST"]
    assert list(script.objects.list("")) == []


def test_the_probe_refuses_a_store_without_conditional_writes(store: S3Store, script: ScriptedS3) -> None:
    script.ignores_conditions = True
    with pytest.raises(ConfigurationError, match="ignores If-None-Match"):
        probe_conditional_writes(store)


def test_an_endpoint_that_is_not_there_is_named_with_the_remedy() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://user:{SECRET}@127.0.0.1:{held.getsockname()[1]}"
        store = S3Store("my-bucket", endpoint=endpoint, patience_s=0.2)
        with pytest.raises(StoreUnavailable) as caught:
            store.put("a", b"")
    message = str(caught.value)
    for part in ("'my-bucket'", "http://127.0.0.1:", "DRIFTLINE_S3_ENDPOINT", "DRIFTLINE_BUCKET", "driftline status"):
        assert part in message
    assert SECRET not in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store("bucket", endpoint="http://127.0.0.1:9", patience_s=0.0)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(StoreUnavailable, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        store.get("a")


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    settings = Settings(s3_endpoint="localhost 8333", bucket="b")  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigurationError, match="DRIFTLINE_S3_ENDPOINT is no endpoint"):
        open_store(settings).get("a")


FORKING = """
import multiprocessing, sys
from driftline.store.client import S3Store

store = S3Store("bucket", endpoint=sys.argv[1])
store.put("a", b"from the parent")
with store._lock:  # as if another thread held it at the fork
    child = multiprocessing.get_context("fork").Process(target=store.put, args=("a", b"from the child"))
    child.start()
child.join(20)
child.kill()
child.join()
sys.exit(child.exitcode)
"""


def test_a_forked_child_uses_connections_of_its_own(store: S3Store) -> None:
    """In a process of its own: forking one that holds every library of the suite would test those."""
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    command = [sys.executable, "-c", FORKING, str(store.endpoint)]
    ended = subprocess.run(
        command, env={**os.environ, **keys}, timeout=60, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert store.get("a").body == b"from the child"


def test_requests_of_many_threads_are_all_counted(store: S3Store) -> None:
    threads = [threading.Thread(target=store.put, args=(f"k{i}", b"")) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.requests == {"put_object": 20}
