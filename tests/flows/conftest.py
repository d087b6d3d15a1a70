"""One Prefect server and one S3 server for all tests of flows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from prefect.client.orchestration import PrefectClient, get_client
from prefect.testing.utilities import prefect_test_harness

from driftline.params import settings
from tests.support.deployments import ROOT

if TYPE_CHECKING:
    from tests.support.seaweed import Seaweed


@pytest.fixture(scope="session", autouse=True)
def prefect_server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=240):
        yield


@pytest.fixture
def surroundings(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings of this process, and of the processes it starts, name the test's S3 server and no MLflow."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DRIFTLINE_MLFLOW_URI", raising=False)
    monkeypatch.setenv("DRIFTLINE_HOME", str(ROOT))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
async def client() -> AsyncIterator[PrefectClient]:
    """A client of the tests' Prefect server."""
    async with get_client() as found:
        yield found
