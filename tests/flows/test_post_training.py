"""A whole run: real flows, workers, processes and trainer; only the engine is the scripted one.

Then the same run again: what is done is not done twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import PrefectClient

from driftline.params import RunParameters, settings
from driftline.store import keys, tasksets
from driftline.tracking.report import build_report
from flows.post_training import post_training
from tasks.stores import run_store, shared_store
from tests.support.deployments import serving

PARAMETERS = RunParameters.model_validate(
    {
        "seed": 3,
        "model": {"hidden_size": 32, "layers": 1, "heads": 2, "warm_start_steps": 4, "warm_start_batch": 4},
        "environment": {"task_set": "flows-test", "train_tasks": 32, "held_out_tasks": 4},
        "rollout": {"group_size": 2, "groups_per_step": 2},
        "overlap": {"lead_groups": 2},
        "engine": {"backend": "scripted"},
        "training": {"steps": 2},
        "tracking": {"experiment": "flows-test", "registered_model": "flows-test"},
    }
)

pytestmark = [
    pytest.mark.usefixtures("surroundings"),
    pytest.mark.timeout(600),
    # MLflow's own tables, which it here opens in this process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
async def workers(client: PrefectClient) -> AsyncIterator[None]:
    async with serving(client, "rollout-gpu", "train-gpu"):
        yield


@pytest.fixture
def mlflow(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """MLflow without a server: a database that all processes of the run write to."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("DRIFTLINE_MLFLOW_URI", uri)
    settings.cache_clear()
    found = MlflowClient(tracking_uri=uri, registry_uri=uri)
    found.create_experiment("flows-test", artifact_location=(tmp_path / "artifacts").as_uri())
    return found


async def artifacts(client: PrefectClient) -> dict[str, str]:
    return {found.key or "": str(found.data) for found in await client.read_artifacts()}


async def test_a_run_from_tasks_to_a_registered_policy(workers: None, mlflow: MlflowClient, client: PrefectClient):
    run = await post_training(params=PARAMETERS)
    store, description = run_store(run), run_store(run).describe()

    head, _ = store.read_head()
    assert (head.state, head.step, head.version.number if head.version else None) == ("finished", 2, 2)
    assert [record.step for record in store.steps()] == [1, 2]
    assert sorted(found.version for found in store.evaluations()) == [0, 2]
    assert len(tasksets.load(shared_store(), "flows-test", description.task_set)) == 32
    report = build_report(shared_store(), run, bucket=settings().bucket)
    assert report.summary.steps == 2

    assert description.mlflow_run is not None
    tracked = mlflow.get_run(description.mlflow_run)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["training.steps"] == "2"
    assert {"train/loss", "divergence/k3_nats", "idle/rollout_share"} <= set(tracked.data.metrics)
    files = {entry.path for entry in mlflow.list_artifacts(description.mlflow_run)}
    assert {"timeline.png", "report.json", "parameters.json"} <= files
    [version] = mlflow.search_model_versions("name = 'flows-test'")
    assert version.source == f"s3://{settings().bucket}/{keys.final_model_prefix(run)}"
    prefix = keys.final_model_prefix(run)
    model = {info.key.removeprefix(prefix) for info in shared_store().list(prefix)}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= model

    shown = await artifacts(client)
    assert f"progress-{run}" in shown
    assert f"Offsets of run {run}" in shown[f"offsets-{run}"]
    assert f"Run {run} (finished)" in shown[f"report-{run}"]

    before = len(await client.read_flow_runs())
    again = await post_training(params=RunParameters(), run=run)  # pyright: ignore[reportCallIssue]
    assert again == run
    assert len(await client.read_flow_runs()) == before + 1, "a finished run needs no child"
    assert len(mlflow.search_model_versions("name = 'flows-test'")) == 1
    assert mlflow.get_run(description.mlflow_run).info.status == "FINISHED"
    assert store.describe().parameters == PARAMETERS.model_dump(mode="json")


VLLM = {
    "engine": {"backend": "vllm", "max_num_seqs": 8},
    # Its CPU kernels take no heads as small as those of the tiny model.
    "model": {"warm_start_steps": 4, "warm_start_batch": 4},
}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("engine", [{}, VLLM], ids=["scripted", "vllm"])
async def test_a_run_of_several_environments(workers: None, mlflow: MlflowClient, engine: dict[str, Any]):
    """From the base policy to the evaluation, each environment is played by its own family."""
    both = "pointer_chase/v1 + tests.support.environments:QuickDice"
    mixture = {"id": both, "task_set": "flows-mixture", "train_tasks": 32, "held_out_tasks": 4}
    sections = {"environment": mixture} | engine
    run = await post_training(params=RunParameters.model_validate(PARAMETERS.model_dump() | sections))
    store = run_store(run)
    assert store.read_head()[0].state == "finished"
    evaluations = store.evaluations()
    assert [(found.version, found.invalid) for found in evaluations] == [(0, 0), (2, 0)]
    assert [[one.tasks for one in found.by_environment.values()] for found in evaluations] == [[2, 2]] * 2
    tracked = mlflow.get_run(store.describe().mlflow_run or "").data.metrics
    for environment, found in evaluations[-1].by_environment.items():
        assert tracked[f"evaluation/success_of/{environment}"] == found.success
    records = store.steps()
    assert {count.failures for record in records for count in record.episodes.values()} == {0}
    assert [record.ledger.imbalance for record in records if record.ledger] == [0, 0]
    played = {member.environment for group in store.new_groups() for member in group.trajectories}
    assert played == {"pointer_chase/v1", "quick-dice/v1"}
    held_out = tasksets.load(shared_store(), "flows-mixture-held-out", store.describe().held_out_task_set)
    assert sorted(task.environment for task in held_out) == ["pointer_chase/v1"] * 2 + ["quick-dice/v1"] * 2
