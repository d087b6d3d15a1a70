"""The refresh as a flow: its stages as tasks, its report, its dataset in MLflow; again, it does nothing again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client

from driftline.errors import EnvironmentFailed
from driftline.store import tasksets
from driftline.tracking.datasets import EXPERIMENT
from environments.pointer_chase import PointerChase
from flows.environment_refresh import environment_refresh
from tasks.refresh_plan import RefreshParameters
from tasks.stores import shared_store
from tests.support.local_mlflow import local_mlflow

NAME = "flow-refresh"
OPTIONS = RefreshParameters.model_validate({"proposals": 40, "window": 20})

pytestmark = [
    pytest.mark.usefixtures("surroundings"),
    pytest.mark.timeout(600),
    # MLflow's own tables, which it here opens in this process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def mlflow(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    return local_mlflow(tmp_path, monkeypatch, EXPERIMENT)


async def test_a_refresh_publishes_reports_and_registers(mlflow: MlflowClient):
    found = await environment_refresh(task_set=NAME, train_tasks=32, held_out_tasks=8, seed=5, options=OPTIONS)
    store = shared_store()
    head, manifest = tasksets.head(store, NAME), tasksets.manifest(store, NAME, found.version)
    assert head.version == found.version
    assert (manifest.tasks, manifest.statistics["validate/accepted"]) == (32, 40)
    async with get_client() as client:
        artifacts = [artifact for artifact in await client.read_artifacts() if artifact.key == f"refresh-{NAME}"]
        runs = {run.name for run in await client.read_task_runs()}
    assert f"# {NAME} {found.version}" in str(artifacts[0].data)
    assert {f"publish {NAME}", f"measure for {NAME}", f"plan the refresh of {NAME}"} <= runs
    experiment = mlflow.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    [run] = mlflow.search_runs([experiment.experiment_id])
    assert run.inputs is not None
    [dataset] = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == (NAME, found.version)
    assert manifest.file.key in dataset.dataset.source
    assert run.data.metrics["curate/unmeasured"] == 32

    again = await environment_refresh(task_set=NAME, train_tasks=32, held_out_tasks=8, seed=5, options=OPTIONS)
    assert again == found
    assert len(mlflow.search_runs([experiment.experiment_id])) == 1
    next_day = await environment_refresh(task_set=NAME, train_tasks=32, held_out_tasks=8, seed=6, options=OPTIONS)
    assert tasksets.manifest(store, NAME, next_day.version).parent == found.version
    assert next_day.held_out_version == found.held_out_version


class Unsolvable(PointerChase):
    """A family whose oracle is wrong."""

    def oracle(self, task):  # pyright: ignore
        return ["=xx"]


async def test_a_failed_stage_publishes_nothing():
    with pytest.raises(EnvironmentFailed, match="does not accept its oracle's solution"):
        await environment_refresh(
            environment=f"{__name__}:Unsolvable", task_set="unsolvable", train_tasks=8, held_out_tasks=4, seed=1,
            options=OPTIONS,
        )  # fmt: skip
    assert await asyncio.to_thread(lambda: list(shared_store().list("tasksets/unsolvable/HEAD"))) == []
