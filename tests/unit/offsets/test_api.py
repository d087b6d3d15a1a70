"""The API's answers, by value."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from driftline.records import Segment
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from tests.support import offset_runs
from tests.support import records as record_values
from tests.support.offset_service import served

SMALL: Any = {"groups": 2, "members": 4}
PAGE_FILES = sorted(Path("src/driftline/offsets/page").iterdir())
NOW = offset_runs.commit_time(30) + 5.0


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    run_store = offset_runs.write_run(found, "r", 30, engines={"c0": 30}, **SMALL)
    lagging = offset_runs.report("r", "c1", 27, NOW - 40.0, probe_difference_nats=0.25)
    run_store.write_offset(lagging)
    offset_runs.write_run(found, "old", 30, measured=False, created=offset_runs.BEGAN - 1, **SMALL)
    return found


@pytest.fixture
async def client(store: MemoryStore) -> AsyncIterator[httpx.AsyncClient]:
    async with served(store, clock=lambda: NOW) as found:
        yield found


async def get(client: httpx.AsyncClient, path: str, status: int = 200) -> Any:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    kind = "application/json" if status == 200 else "application/problem+json"
    assert answer.headers["content-type"] == kind
    return answer.json()


async def test_runs_are_listed_newest_first(client: httpx.AsyncClient):
    found = await get(client, "/v1/runs")
    assert [(one["run"], one["step"], one["version"], one["state"]) for one in found["runs"]] == [
        ("r", 30, 30, "running"),
        ("old", 30, 30, "running"),
    ]
    assert len((await get(client, "/v1/runs?limit=1"))["runs"]) == 1


async def test_the_offset_of_each_engine_is_against_head_not_against_what_the_engine_has_seen(
    client: httpx.AsyncClient,
):
    found = await get(client, "/v1/runs/r/offset")
    assert (found["step"], found["version"], found["lead_groups"], found["stale"]) == (30, 30, 16, False)
    assert (found["controller"], found["budget_k3_nats"]) == ("fixed", 0.02)
    assert found["diagnosis"]["cause"] == "healthy"
    assert found["metrics"][metrics.K3] == 0.01
    current, lagging = found["engines"]
    assert (current["engine"], current["version"], current["lag_versions"], current["lag_seconds"]) == (
        "c0",
        30,
        0,
        0.0,
    )
    assert current["alive"]
    assert (lagging["version"], lagging["lag_versions"]) == (27, 3)  # Its own report says HEAD is at 27.
    assert lagging["lag_seconds"] == NOW - offset_runs.commit_time(28)
    assert (lagging["heartbeat_age_s"], lagging["alive"]) == (40.0, False)
    assert lagging["probe_difference_nats"] == 0.25
    assert lagging["divergence"]["k3_nats"] == pytest.approx(0.01)
    assert lagging["floor_k3_nats"] == pytest.approx(1e-7)


async def test_the_divergence_of_an_engine_is_of_the_last_steps_alone(store: MemoryStore):
    offset_runs.write_run(store, "shift", 4, k3=0.5, **SMALL)
    for found in offset_runs.records("shift", 12, first=5, k3=0.02, **SMALL):
        offset_runs.commit(store, found)
    async with served(store, clock=lambda: NOW) as client:
        engines = (await get(client, "/v1/runs/shift/offset"))["engines"]
    assert [engine["divergence"]["k3_nats"] for engine in engines] == pytest.approx([0.02, 0.02])


async def test_another_question_is_another_answer(client: httpx.AsyncClient):
    """Encoded answers are kept: by all that they depend on."""
    for steps, by in ((5, "lag"), (6, "lag"), (5, "version"), (5, "lag")):
        found = await get(client, f"/v1/runs/r/divergence?steps={steps}&by={by}")
        assert (found["steps"], found["by"]) == (steps, by)
    assert [len((await get(client, f"/v1/runs/r/history?points={n}"))["last"]) for n in (5, 7, 5)] == [5, 7, 5]


async def test_latest_is_the_run_created_last(client: httpx.AsyncClient):
    assert (await get(client, "/v1/runs/latest/offset"))["run"] == "r"


async def test_divergence_by_lag_pools_the_last_steps(client: httpx.AsyncClient):
    found = await get(client, "/v1/runs/r/divergence?by=lag&steps=10")
    assert (found["first_step"], found["last_step"], found["measured"]) == (21, 30, True)
    assert [(part["key"], part["tokens"]) for part in found["parts"]] == [("0", 4_000), ("1", 4_000)]
    assert [part["k3_nats"] for part in found["parts"]] == pytest.approx([1e-7, 0.01])
    assert found["batch"][metrics.K3] == pytest.approx(0.01)


async def test_the_largest_lag_says_whether_it_stands_for_larger_ones(store: MemoryStore):
    record = offset_runs.record("r", 31, keys.step("r", 30, 1), **SMALL)
    offset_runs.commit(store, replace(record, metrics={**record.metrics, metrics.LAG_STEPS_MAX: 6.0}))
    async with served(store, clock=lambda: NOW) as client:
        found = await get(client, "/v1/runs/r/divergence?by=lag")
        assert [(part["key"], part["or_more"]) for part in found["parts"]] == [("0", False), ("1", True)]
        found = await get(client, "/v1/runs/old/divergence?by=lag")
        assert found["parts"] == []


async def test_divergence_by_version_is_of_the_versions_that_sampled(client: httpx.AsyncClient):
    found = await get(client, "/v1/runs/r/divergence?by=version&steps=1")
    assert [part["key"] for part in found["parts"]] == ["28", "29"]  # Step 30 trains version 29, of lag 1 and 0.
    environment = await get(client, "/v1/runs/r/divergence?by=environment")
    assert [part["key"] for part in environment["parts"]] == ["pointer_chase/v1"]


async def test_quantiles_over_members_show_the_few_that_are_far_off(store: MemoryStore):
    record = offset_runs.record("r", 31, keys.step("r", 30, 1), **SMALL)
    first = replace(record.groups[0], environment="pointer_chase/v1")
    far = tuple(replace(segment, k3=0.9, k1=0.9) for segment in first.uses[0].segments)
    first = replace(first, uses=(replace(first.uses[0], segments=far), *first.uses[1:]))
    named = dict.fromkeys(metrics.MEMBER_K3.values(), 0.25)
    changed = replace(record, groups=(first, *record.groups[1:]), metrics={**record.metrics, **named})
    offset_runs.commit(store, changed)
    async with served(store, clock=lambda: NOW) as client:
        for by, key, members in (("lag", "1", 8), ("version", "29", 8), ("environment", "pointer_chase/v1", 4)):
            found = await get(client, f"/v1/runs/r/divergence?by={by}&steps=1")
            (part,) = [part for part in found["parts"] if part["key"] == key]
            assert part["members"] == members, by
            assert part["member_k3_nats"]["p50"] == pytest.approx(0.01)
            above = 0.99 * (members - 1) % 1
            assert part["member_k3_nats"]["p99"] == pytest.approx(0.01 + above * 0.89)
        assert found["batch"]["divergence/member_k3_p99_nats"] == 0.25
        whole = await get(client, "/v1/runs/r/divergence?by=lag&steps=2")
        assert [part["members"] for part in whole["parts"]] == [16, 16]
        assert (await get(client, "/v1/runs/r/offset"))["metrics"]["divergence/member_k3_p50_nats"] == 0.25


async def test_the_floor_of_an_engine_is_not_that_of_the_one_before_it(store: MemoryStore):
    record = offset_runs.record("r", 31, keys.step("r", 30, 1), **SMALL)
    floors = {"c0": offset_runs.summary(200, 0.5), "c1": offset_runs.summary(200, 0.25)}
    told = replace(record, floor_by_cell=floors, incarnations={"c0": "c0-0", "c1": "c1-1"})
    offset_runs.commit(store, told)
    async with served(store, clock=lambda: NOW) as client:
        first, second = (await get(client, "/v1/runs/r/offset"))["engines"]
    assert first["floor_k3_nats"] == pytest.approx(1e-7), "of the steps before, which say no incarnation"
    assert second["floor_k3_nats"] == pytest.approx((0.25 + 7 * 1e-7) / 8)


async def test_the_ledger_is_the_last_records_and_counts_by_reason(client: httpx.AsyncClient, store: MemoryStore):
    found = await get(client, "/v1/runs/r/ledger")
    expected = offset_runs.ledger(30, 2)
    assert (found["generated"], found["balances"], found["imbalance"]) == (expected.generated, True, 0)
    assert found["terms"] == expected.terms
    assert found["by_reason"]["cancelled"] == {"killed": 60, "late": 30}
    assert sum(one["members"] for one in found["admission"]) == 30 * 8
    run_store = RunStore(store, "uneven")
    run_store.create(offset_runs.description("uneven"))
    record = offset_runs.record("uneven", 1, None, **SMALL)
    uneven = replace(
        record,
        ledger=replace(offset_runs.ledger(1, 2), generated=offset_runs.ledger(1, 2).generated + 7),
        metrics={**record.metrics, metrics.LEDGER_IMBALANCE: 7.0},
    )
    offset_runs.commit(store, uneven)
    found = await get(client, "/v1/runs/uneven/ledger")
    assert (found["balances"], found["imbalance"], found["unbalanced_steps"]) == (False, 7, [1])


async def test_a_trajectory_has_its_segments_with_version_lag_and_divergence(client: httpx.AsyncClient):
    record = offset_runs.record("r", 30, keys.step("r", 29, 1), **SMALL)
    use = record.groups[1].uses[2]
    found = await get(client, f"/v1/runs/r/trajectories/{record.groups[1].group}/2")
    assert (found["step"], found["trained_version"], found["cell"]) == (30, 29, use.cell)
    assert [(s["start"], s["version"], s["lag"], s["tokens"]) for s in found["segments"]] == [
        (s.start, s.version, 29 - s.version, s.tokens) for s in use.segments
    ]
    assert [s["k3_nats"] for s in found["segments"]] == [0.01, 0.01]
    assert found["divergence"]["tokens"] == use.sampled_tokens
    assert (found["measured"], found["sampled_tokens"]) == (True, use.sampled_tokens)


async def test_of_an_old_run_what_was_not_measured_is_said_so_and_the_rest_is_there(client: httpx.AsyncClient):
    offset = await get(client, "/v1/runs/old/offset")
    assert offset["diagnosis"] is None
    assert offset["engines"][0]["divergence"] is None
    assert offset["engines"][0]["floor_k3_nats"] is None
    assert offset["metrics"][metrics.K3] == 0.01
    for by in ("lag", "environment", "version"):
        found = await get(client, f"/v1/runs/old/divergence?by={by}")
        assert (found["measured"], found["parts"]) == (False, [])
        assert found["note"].startswith("not measured")
        assert found["batch"][metrics.K3] == pytest.approx(0.01)
        assert found["batch"][metrics.FLOOR_K3] == pytest.approx(1e-7)
        assert found["batch"][metrics.CHI_SQUARE] is None
    history = await get(client, "/v1/runs/old/history")
    assert set(history["lead_groups"]) == {None}
    assert set(history["cause"]) == {None}


async def test_a_trajectory_of_an_old_run_has_bare_segments_from_its_object(
    client: httpx.AsyncClient, store: MemoryStore
):
    run_store = RunStore(store, "bare")
    run_store.create(offset_runs.description("bare"))
    group = record_values.group(0, members=2, run="bare", segments=(Segment(0, 0), Segment(2, 0), Segment(4, 1)))
    key = run_store.append_groups("c0", 0, [group])
    record = offset_runs.old(offset_runs.record("bare", 2, None, groups=1, members=2))
    use = replace(record.groups[0], group=0, key=key)
    offset_runs.commit(store, replace(record, groups=(use,)))
    found = await get(client, "/v1/runs/bare/trajectories/0/1")
    assert [(s["start"], s["version"], s["lag"], s["tokens"], s["k3_nats"]) for s in found["segments"]] == [
        (2, 0, 1, 2, None),
        (4, 1, 0, 1, None),
    ]
    assert found["note"].startswith("not measured")
    assert found["divergence"] is None
    store.delete([key])
    assert (await get(client, "/v1/runs/bare/trajectories/0/1"))["segments"] == []


async def test_history_is_in_few_points_under_the_names_of_mlflow(client: httpx.AsyncClient):
    found = await get(client, "/v1/runs/r/history?points=4")
    assert (found["first"], found["last"]) == ([1, 11, 20, 30], [10, 19, 29, 30])
    metrics.check(found["values"])
    assert all(len(series) == 4 for series in found["values"].values())
    assert found["values"][metrics.LAG_STEPS_MAX] == [1.0, 1.0, 1.0, 1.0]  # The largest; the mean would be 0.9.
    assert found["values"][metrics.LAG_STEPS_MEAN][0] == pytest.approx(0.72)


async def test_a_fault_is_not_lost_in_a_bucket(store: MemoryStore):
    offset_runs.write_run(store, "faulty", 30, causes=[(1, "healthy"), (12, "staleness"), (13, "healthy")], **SMALL)
    async with served(store, clock=lambda: NOW) as client:
        found = await get(client, "/v1/runs/faulty/history?points=4")
    assert found["cause"] == ["healthy", "staleness", "healthy", "healthy"]


async def test_the_timeline_is_the_last_seconds_that_were_recorded(client: httpx.AsyncClient):
    found = await get(client, "/v1/runs/r/timeline?seconds=6")
    assert found["end_unix"] == pytest.approx(offset_runs.commit_time(30) + 0.2)
    assert found["end_unix"] - found["start_unix"] == pytest.approx(6.0)
    assert found["lanes"] == ["rollout", "apply", "training", "publish"]
    assert all(
        found["start_unix"] <= one["start_unix"] < one["end_unix"] <= found["end_unix"] for one in found["spans"]
    )
    assert found["commits"] == [offset_runs.commit_time(step) for step in (28, 29, 30)]


async def test_a_run_that_has_just_begun_answers_everywhere(client: httpx.AsyncClient, store: MemoryStore):
    RunStore(store, "new").create(offset_runs.description("new"))
    offset = await get(client, "/v1/runs/new/offset")
    assert (offset["state"], offset["step"], offset["version"], offset["engines"]) == ("not started", None, None, [])
    for path in ("ledger", "divergence", "history", "timeline"):
        await get(client, f"/v1/runs/new/{path}")
    problem = await get(client, "/v1/runs/new/trajectories/0/0", 404)
    assert problem["type"] == "unknown-group"


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/runs/nope/offset", 404, "unknown-run"),
        ("/v1/runs/r/trajectories/9999/0", 404, "unknown-group"),
        ("/v1/runs/r/trajectories/59/4", 404, "unknown-member"),
        ("/v1/runs/r/trajectories/-1/0", 422, "impossible-parameter"),
        ("/v1/runs/r/divergence?by=age", 422, "impossible-parameter"),
        ("/v1/runs/r/history?points=1", 422, "impossible-parameter"),
        ("/v1/runs/r/timeline?seconds=nan", 422, "impossible-parameter"),
        ("/v1/runs/r/timeline?seconds=5e-324", 422, "impossible-parameter"),
        ("/v1/runs/r/divergence?bye=lag", 422, "impossible-parameter"),
        ("/v1/runs/.hidden/offset", 422, "impossible-parameter"),
        ("/v1/nothing", 404, "no-such-page"),
        ("/page/nothing.js", 404, "no-such-page"),
    ],
)
async def test_a_wrong_question_is_a_problem_with_a_remedy(
    client: httpx.AsyncClient, path: str, status: int, kind: str
):
    problem = await get(client, path, status)
    assert (problem["type"], problem["status"]) == (kind, status)
    assert problem["remedy"] or kind == "no-such-page"


async def test_what_has_not_changed_is_not_sent_again(client: httpx.AsyncClient, store: MemoryStore):
    first = await client.get("/v1/runs/r/ledger")
    assert first.headers["cache-control"] == "private, no-cache"
    tag = first.headers["etag"]
    again = await client.get("/v1/runs/r/ledger", headers={"If-None-Match": f'"x", W/{tag}'})
    assert (again.status_code, again.content) == (304, b"")
    offset_runs.commit(store, next(offset_runs.records("r", 31, first=31, **SMALL)))
    async with served(store, clock=lambda: NOW) as anew:
        changed = await anew.get("/v1/runs/r/ledger", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert (await client.get("/v1/runs/r/offset")).headers["cache-control"] == "no-store"


async def test_a_figure_that_json_does_not_have_is_null(store: MemoryStore):
    record = offset_runs.record("nan", 1, None, **SMALL)
    broken = replace(record.by_lag[0], k3=math.nan, ess_fraction=math.inf)
    RunStore(store, "nan").create(offset_runs.description("nan"))
    run_store = RunStore(store, "nan")
    offset_runs.commit(store, replace(record, by_lag={0: broken}))
    run_store.write_offset(offset_runs.report("nan", "c0", 1, NOW, probe_difference_nats=math.nan))
    async with served(store, clock=lambda: NOW) as client:
        found = await get(client, "/v1/runs/nan/divergence")
        assert found["parts"][0]["k3_nats"] is None
        assert (await get(client, "/v1/runs/nan/offset"))["engines"][0]["probe_difference_nats"] is None


async def test_the_page_and_its_files_come_from_the_package(client: httpx.AsyncClient):
    page = await client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for file in PAGE_FILES:
        answer = await client.get(f"/page/{file.name}")
        assert answer.content == file.read_bytes()
        assert "octet-stream" not in answer.headers["content-type"]
        text = answer.text.replace("http://www.w3.org/", "")
        assert "http://" not in text, f"{file.name} names another host"
        assert "https://" not in text
        assert "innerHTML" not in text
