"""The store fails, or holds what cannot be read: an answer in time that says so, and the last one known."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from driftline.errors import StoreUnavailable
from driftline.offsets import service
from driftline.offsets.problems import Problem
from driftline.offsets.service import Service
from driftline.records import Span, encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.protocol import ObjectInfo, StoredObject
from driftline.store.run_store import RunStore
from tests.support import offset_runs
from tests.support.offset_service import served

SMALL: Any = {"groups": 2, "members": 2}
READS = ("offset", "divergence", "ledger", "history", "timeline")


class FailingStore(MemoryStore):
    """A store that can be switched off, or made to hang."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.gate = threading.Event()
        self.gate.set()

    def _check(self) -> None:
        self.gate.wait(20)
        if self.down:
            raise StoreUnavailable("cannot read: the endpoint does not answer")

    def get(self, key: str) -> StoredObject:
        self._check()
        return super().get(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        self._check()
        return super().list(prefix, after=after)

    def folders(self, prefix: str) -> Any:
        self._check()
        return super().folders(prefix)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FailingStore:
    monkeypatch.setattr(service, "RUN_PERIOD_S", 0.02)
    found = FailingStore()
    offset_runs.write_run(found, "r", 5, **SMALL)
    return found


async def until(client: Any, path: str, condition: Any) -> Any:
    async with asyncio.timeout(5):
        while True:
            answer = await client.get(path)
            if condition(answer):
                return answer
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("path", READS)
async def test_a_store_that_is_down_from_the_start_is_503_with_retry_after(store: FailingStore, path: str):
    store.down = True
    async with served(store) as client:
        answer = await client.get(f"/v1/runs/r/{path}")
        assert (answer.status_code, answer.json()["type"]) == (503, "store-unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await client.get("/v1/runs")).status_code == 503
        assert (await client.get("/metrics")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
        store.down = False
        assert (await client.get(f"/v1/runs/r/{path}")).status_code == 200


async def test_an_outage_later_leaves_the_last_answers_marked_as_stale(store: FailingStore):
    async with served(store) as client:
        for path in READS:
            answer = await client.get(f"/v1/runs/r/{path}")
            assert "driftline-stale" not in answer.headers
        store.down = True
        answer = await until(client, "/v1/runs/r/offset", lambda found: found.json()["stale"])
        assert answer.json()["step"] == 5
        assert "does not answer" in answer.json()["trouble"]
        assert answer.json()["age_s"] >= 0
        for path in READS:
            answer = await client.get(f"/v1/runs/r/{path}")
            assert (answer.status_code, answer.headers["driftline-stale"]) == (200, "true")
            assert int(answer.headers["age"]) >= 0
        answer = await client.get("/v1/runs/r/trajectories/8/0")
        assert (answer.status_code, answer.json()["type"]) == (503, "store-unavailable")
        store.down = False
        await until(client, "/v1/runs/r/offset", lambda found: not found.json()["stale"])


async def test_a_store_that_hangs_holds_up_no_request_beyond_the_deadline(store: FailingStore):
    store.gate.clear()
    try:
        async with served(store, deadline_s=0.2) as client:
            began = time.monotonic()
            answers = await asyncio.gather(
                *(client.get(f"/v1/runs/r/{path}") for path in READS), client.get("/metrics")
            )
            assert time.monotonic() - began < 1.5
            assert {answer.status_code for answer in answers} == {503}
            assert answers[0].json()["type"] == "still-reading"
            assert "0 of 0 step records" in answers[0].json()["detail"]
            store.gate.set()
            await until(client, "/v1/runs/r/offset", lambda found: found.status_code == 200)
            store.gate.clear()
            began = time.monotonic()
            assert (await client.get("/v1/runs/r/offset")).status_code == 200
            answer = await client.get("/v1/runs/r/trajectories/8/0")
            assert (answer.status_code, answer.json()["type"]) == (503, "still-reading")
            assert time.monotonic() - began < 1.5
            store.gate.set()
    finally:
        store.gate.set()


async def test_a_run_that_vanishes_is_404_from_then_on(store: FailingStore):
    async with served(store) as client:
        assert (await client.get("/v1/runs/r/offset")).status_code == 200
        store.delete([info.key for info in store.list("runs/r/")])
        answer = await until(client, "/v1/runs/r/offset", lambda found: found.status_code == 404)
        assert answer.json()["type"] == "unknown-run"
        assert "GET /v1/runs" in answer.json()["remedy"]


async def test_a_head_of_a_newer_format_is_named_and_never_misread(store: FailingStore):
    newer = encode(offset_runs.head("r", 5)).replace(b'"format":1', b'"format":2')
    store.put(keys.head("r"), newer)
    async with served(store) as client:
        answer = await client.get("/v1/runs/r/offset")
        assert (answer.status_code, answer.json()["type"]) == (502, "unreadable-object")
        assert "newer format 2" in answer.json()["detail"]
        listed = (await client.get("/v1/runs")).json()["runs"][0]
        assert (listed["state"], listed["step"]) == ("unreadable", None)


async def test_a_head_that_becomes_newer_leaves_the_last_answer_as_stale(store: FailingStore):
    async with served(store) as client:
        assert (await client.get("/v1/runs/r/offset")).status_code == 200
        store.put(keys.head("r"), encode(offset_runs.head("r", 6)).replace(b'"format":1', b'"format":2'))
        answer = await until(client, "/v1/runs/r/offset", lambda found: found.json()["stale"])
        assert "newer format 2" in answer.json()["trouble"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"step": 3}', b"\xff\xfe", b'{"format": 99}'])
async def test_a_step_record_that_cannot_be_read_is_named(store: FailingStore, body: bytes):
    store.put(keys.step("r", 3, 1), body)
    async with served(store) as client:
        answer = await client.get("/v1/runs/r/divergence")
        assert (answer.status_code, answer.json()["type"]) == (502, "unreadable-object")
        assert "steps/000003-0001.json" in answer.json()["detail"]


async def test_a_step_record_that_is_gone_is_no_run_that_is_gone(store: FailingStore):
    store.delete([keys.step("r", 3, 1)])
    async with served(store) as client:
        answer = await client.get("/v1/runs/r/divergence")
        assert (answer.status_code, answer.json()["type"]) == (502, "unreadable-object")
        assert "steps/000003-0001.json" in answer.json()["detail"]


async def test_a_new_step_is_in_the_answers_of_the_same_service(store: FailingStore):
    """What is kept encoded is of one step record."""
    async with served(store) as client:
        before = [(await client.get(f"/v1/runs/r/{path}")).json() for path in ("ledger", "divergence", "history")]
        assert (before[0]["step"], before[1]["last_step"], before[2]["last"][-1]) == (5, 5, 5)
        offset_runs.commit(store, next(offset_runs.records("r", 6, first=6, **SMALL)))
        await until(client, "/v1/runs/r/offset", lambda found: found.json()["step"] == 6)
        after = [(await client.get(f"/v1/runs/r/{path}")).json() for path in ("ledger", "divergence", "history")]
        assert (after[0]["step"], after[1]["last_step"], after[2]["last"][-1]) == (6, 6, 6)


async def test_encoded_answers_are_kept_within_bounds(store: FailingStore, monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []

    def answer(number: int, characters: int = 3_000) -> BaseModel:
        made.append(number)
        return Problem(type="t", title="t", status=404, detail="x" * characters, remedy="", errors=[])

    monkeypatch.setattr(service, "MOST_BODY_BYTES", 10_000)
    kept = Service(store)
    for number in (0, 1, 2, 0, 3, 0, 1):
        await kept.body((number,), lambda number=number: answer(number))
    assert made == [0, 1, 2, 3, 1], "three are kept, those asked for last"
    await kept.body((9,), lambda: answer(9, 50_000))
    await kept.body((9,), lambda: answer(9, 50_000))
    assert made[-2:] == [1, 9], "one alone is kept whatever its size"
    await kept.close()


async def test_an_answer_that_takes_long_holds_up_no_other_and_is_made_once():
    gate, made = threading.Event(), list[str]()

    def answer(kind: str, wait: bool = False) -> BaseModel:
        made.append(kind)
        assert not wait or gate.wait(20)
        return Problem(type=kind, title="t", status=404, detail="", remedy="", errors=[])

    kept = Service(MemoryStore())
    slow = [asyncio.create_task(kept.body(("slow",), lambda: answer("slow", wait=True))) for _ in range(3)]
    slow[0].add_done_callback(lambda _: made.append("done"))
    quick = await kept.body(("quick",), lambda: answer("quick"))
    assert b'"quick"' in quick.content
    slow[1].cancel()
    gate.set()
    assert await slow[0] is await slow[2]
    assert sorted(made) == ["done", "quick", "slow"], "whoever goes away takes nobody's answer along"
    await kept.close()


async def test_an_answer_that_cannot_be_made_is_made_again_by_the_next_who_asks():
    def fail() -> BaseModel:
        raise ValueError("no")

    kept = Service(MemoryStore())
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await kept.body(("x",), fail)
    await kept.close()


async def test_a_new_record_that_cannot_be_read_leaves_the_last_answer_as_stale(store: FailingStore):
    async with served(store) as client:
        assert (await client.get("/v1/runs/r/offset")).json()["step"] == 5
        store.put(keys.step("r", 6, 1), b"{")
        store.put(keys.head("r"), encode(offset_runs.head("r", 6)))
        answer = await until(client, "/v1/runs/r/offset", lambda found: found.json()["stale"])
        assert answer.json()["step"] == 5
        assert "000006" in answer.json()["trouble"]


async def test_a_report_or_a_stretch_of_the_timeline_that_cannot_be_read_is_passed_over(store: FailingStore):
    store.put(keys.offset("r", "c0"), b"{")
    store.put(keys.timeline("r", "trainer-0001", 99), b"{")
    async with served(store) as client:
        offset = (await client.get("/v1/runs/r/offset")).json()
        assert [engine["engine"] for engine in offset["engines"]] == ["c1"]
        assert (await client.get("/v1/runs/r/timeline")).json()["spans"]


async def test_parameters_and_times_that_no_run_has_are_no_defect_of_the_service(store: FailingStore):
    """As another writer, or a changed digit, leaves them: what they say is passed over, the rest is answered."""
    odd = replace(offset_runs.description("r"), parameters={"overlap": {"controller": 7, "budget_k3_nats": "x"}})
    store.put(keys.description("r"), encode(odd))
    RunStore(store, "r").append_spans("trainer-0001", 98, [Span("training", "", 1.0, 1e18, 1)])
    async with served(store) as client:
        offset = (await client.get("/v1/runs/r/offset")).json()
        assert (offset["step"], offset["controller"], offset["budget_k3_nats"]) == (5, None, None)
        assert (await client.get("/metrics")).status_code == 200
        spans = (await client.get("/v1/runs/r/timeline")).json()["spans"]
        assert [span["end_unix"] for span in spans] == [1e18]


async def test_a_record_of_endless_depth_is_unreadable_not_a_defect(store: FailingStore):
    store.put(keys.step("r", 3, 1), b"[" * 100_000)
    async with served(store) as client:
        answer = await client.get("/v1/runs/r/divergence")
        assert (answer.status_code, answer.json()["type"]) == (502, "unreadable-object")
