"""An API that is away is waited for; one that refuses is not."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import StateType

from tasks import flow_runs
from tasks.flow_runs import PrefectFlowRuns, patiently
from tasks.supervision import Child, ChildState, Plan


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://api")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


class Api:
    """Fails as told, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def call(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_runs, "RETRY_S", 0.0)


async def test_an_outage_is_waited_for():
    api = Api(httpx.ConnectError("away"), httpx.ReadTimeout("slow"), refusal(503))
    assert await patiently(api.call, "ask") == "answer"


@pytest.mark.parametrize("status", [404, 422, 500])
async def test_a_refusal_is_final(status: int):
    api = Api(refusal(status))
    with pytest.raises(httpx.HTTPStatusError):
        await patiently(api.call, "ask")


async def test_the_wait_is_bounded():
    api = Api(*[httpx.ConnectError("away")] * 3)
    with pytest.raises(httpx.ConnectError):
        await patiently(api.call, "ask", patience_s=-1.0)
    assert len(api.errors) == 2


async def test_while_the_api_is_away_a_child_is_as_it_was_last_seen(monkeypatch: pytest.MonkeyPatch):
    async def away(_id: object) -> None:
        raise httpx.ConnectError("away")

    monkeypatch.setattr(flow_runs, "get_client", lambda: SimpleNamespace(read_flow_run=away))
    runs, child = PrefectFlowRuns(), Child(uuid4(), "pool", Plan("d/x", {}, "child", leads=True))
    runs._seen[child.id] = (flow_runs.time.monotonic(), ChildState("running"))  # pyright: ignore[reportPrivateUsage]
    assert await runs.read(child) == ChildState("running")
    monkeypatch.setattr(flow_runs, "OUTAGE_S", -1.0)
    with pytest.raises(httpx.ConnectError):
        await runs.read(child)


def test_a_crash_is_no_verdict():
    phases = flow_runs._PHASES  # pyright: ignore[reportPrivateUsage]
    assert phases[StateType.CRASHED] == "crashed"
    assert phases[StateType.FAILED] == "failed"
