"""What is wrong at start ends a run before any work, with a message that says the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from driftline.errors import ConfigurationError, EnvironmentFailed, StoreUnavailable, TrackingUnavailable
from driftline.params import RunParameters, settings
from flows.post_training import post_training
from tasks import overlap, preflight, runs
from tests.support.seaweed import Seaweed

NOBODY = "http://127.0.0.1:9"

pytestmark = pytest.mark.usefixtures("surroundings")


def parameters(**sections: Any) -> RunParameters:
    return RunParameters.model_validate(sections)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "STORE_PATIENCE_S", 0.1)
    monkeypatch.setattr(preflight, "WORKER_PATIENCE_S", 0.1)


async def flow_runs() -> int:
    async with get_client() as client:
        return len(await client.read_flow_runs())


async def refused(error: type[Exception], message: str, *, run: str | None = None, **sections: Any) -> None:
    """The flow run fails so, and no other flow run was started for it."""
    before = await flow_runs()
    with pytest.raises(error, match=message):
        await post_training(params=parameters(**sections), run=run)
    assert await flow_runs() == before + 1


async def test_a_store_that_is_down(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRIFTLINE_S3_ENDPOINT", NOBODY)
    settings.cache_clear()
    await refused(StoreUnavailable, r"127\.0\.0\.1:9")


async def test_a_bucket_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRIFTLINE_BUCKET", "no-such-bucket")
    settings.cache_clear()
    await refused(StoreUnavailable, r"(?i)bucket 'no-such-bucket'")


async def test_mlflow_that_is_down(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRIFTLINE_MLFLOW_URI", NOBODY)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    settings.cache_clear()
    await refused(TrackingUnavailable, "DRIFTLINE_MLFLOW_URI")


async def test_an_environment_that_nobody_knows():
    await refused(ConfigurationError, r"did you mean 'pointer_chase/v1'", environment={"id": "pointer_chase/v2"})


async def test_an_environment_that_raises():
    section = {"id": "tests.support.environments:Raises"}
    await refused(EnvironmentFailed, "ZeroDivisionError", environment=section)


async def test_a_model_directory_that_is_none(tmp_path: Path):
    section = {"source": "directory", "directory": str(tmp_path)}
    await refused(ConfigurationError, r"model\.directory: .*config\.json", model=section)


async def test_a_run_to_resume_that_is_not_there():
    await refused(ConfigurationError, r"run: there is no run 'r0' in the store; leave `run` out", run="r0")


async def test_a_run_to_resume_that_was_started_with_other_parameters(seaweed: Seaweed):
    from tasks.refresh import TaskSetVersions
    from tests.unit.tasks.test_runs import MODEL

    await runs.create("resumed", parameters(seed=7), MODEL, TaskSetVersions("pc", "v", "h"), None)
    await refused(ConfigurationError, r"^seed: run 'resumed' was started with 7, now 8", run="resumed", seed=8)


async def test_deployments_that_were_not_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overlap, "DEPLOYMENTS", ("rollout/nowhere",))
    await refused(ConfigurationError, r"no deployment 'rollout/nowhere': run `prefect deploy --all`")
