"""The command in a process of its own, over a real S3 server: start, answers, an outage of the store, its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from driftline.store.client import S3Store
from tests.support import offset_runs
from tests.support.offset_service import serving
from tests.support.seaweed import Seaweed, running_seaweed

TOKEN = "a-token-of-enough-characters"
SMALL: Any = {"groups": 2, "members": 2}


@pytest.fixture(scope="module")
def own_seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """Its own server: the test stops it."""
    with running_seaweed(tmp_path_factory.mktemp("seaweed-offsets")) as server:
        yield server


def until(
    address: str, condition: Callable[[httpx.Response], bool], seconds: float = 30.0, **options: Any
) -> httpx.Response:
    deadline = time.monotonic() + seconds
    while True:
        answer = httpx.get(address, timeout=10, **options)
        if condition(answer):
            return answer
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)


def test_a_run_is_followed_through_an_outage_of_the_store(own_seaweed: Seaweed, tmp_path: Path):
    store: S3Store = own_seaweed.store()
    offset_runs.write_run(store, "r", 40, **SMALL)
    with serving(own_seaweed.environment, tmp_path) as address:
        offset = f"{address}/v1/runs/r/offset"
        assert httpx.get(offset).json()["step"] == 40
        offset_runs.commit(store, next(offset_runs.records("r", 41, first=41, **SMALL)))
        until(offset, lambda found: found.json()["step"] == 41)
        own_seaweed.stop()
        found = until(offset, lambda found: bool(found.json().get("stale")))
        assert found.json()["step"] == 41
        assert "does not answer" in found.json()["trouble"]
        began = time.monotonic()
        unknown = httpx.get(f"{address}/v1/runs/other/offset", timeout=20)
        assert (unknown.status_code, unknown.headers["retry-after"]) == (503, "2")
        assert time.monotonic() - began < 5
        own_seaweed.start()
        until(offset, lambda found: not found.json()["stale"], 60)
    log = (tmp_path / "serve.log").read_text()
    assert "Traceback" not in log
    assert own_seaweed.environment["AWS_SECRET_ACCESS_KEY"] not in log


def test_the_token_of_the_environment_is_asked_for_and_never_written(own_seaweed: Seaweed, tmp_path: Path):
    environment = {**own_seaweed.environment, "DRIFTLINE_API_TOKEN": TOKEN}
    with serving(environment, tmp_path, "--host", "0.0.0.0") as address:
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert httpx.get(f"{address}/v1/runs?token={TOKEN}").status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        answer = until(f"{address}/v1/runs", lambda found: found.status_code == 200, headers=bearer)
        assert "server" not in answer.headers
    assert TOKEN not in (tmp_path / "serve.log").read_text()


def test_without_a_token_it_does_not_start_on_another_address(
    own_seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(os.environ, "DRIFTLINE_API_TOKEN", "")
    with (
        pytest.raises(RuntimeError, match="set DRIFTLINE_API_TOKEN"),
        serving(own_seaweed.environment, tmp_path, "--host", "0.0.0.0"),
    ):
        pass
