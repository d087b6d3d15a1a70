"""A run whose lead the controller sets: real flows, workers, engine and trainer, as `post-training` starts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import PrefectClient

from driftline.params import RunParameters
from driftline.tracking import metrics
from driftline.training.steering import Steering
from flows.post_training import post_training
from tasks.stores import run_store
from tests.support.deployments import serving
from tests.support.local_mlflow import local_mlflow

NAME = "steered-run"
STEPS, PER_STEP = 16, 2
PARAMETERS = RunParameters.model_validate(
    {
        "seed": 5,
        "model": {"hidden_size": 64, "layers": 2, "heads": 2, "warm_start_steps": 4, "warm_start_batch": 4},
        "environment": {
            "id": "tests.support.environments:QuickDice", "task_set": NAME, "train_tasks": 32, "held_out_tasks": 4,
        },
        "rollout": {"group_size": 4, "groups_per_step": PER_STEP},
        "overlap": {
            "controller": "divergence", "lead_groups": 2, "lowest_groups": 1, "highest_groups": 5,
            "max_lag_versions": 4, "budget_k3_nats": 0.01,
        },
        "engine": {"max_model_len": 128, "max_num_seqs": 32},
        "training": {"steps": STEPS},
        "tracking": {"experiment": NAME, "registered_model": NAME, "traces_every_steps": 0},
    }
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("surroundings"),
    pytest.mark.timeout(3000),
    # MLflow's own tables, which it here opens in this process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def mlflow(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    return local_mlflow(tmp_path, monkeypatch, NAME)


async def test_the_controller_sets_the_lead_within_its_bounds_and_says_so(
    client: PrefectClient, mlflow: MlflowClient
):
    async with serving(client, "rollout-gpu", "train-gpu"):
        run = await post_training(params=PARAMETERS)
    store = run_store(run)
    head, records = store.read_head()[0], store.steps()
    assert (head.state, len(records)) == ("finished", STEPS)

    overlap = PARAMETERS.overlap
    leads = [*(record.lead_groups for record in records), head.lead_groups]
    assert leads[0] == overlap.lead_groups, "the run begins with it"
    assert overlap.highest_groups is not None
    assert {*leads} <= {*range(overlap.lowest_groups, overlap.highest_groups + 1)}
    assert len({*leads}) > 1, [(record.lead_groups, record.lead_why) for record in records]
    steering = Steering([], PARAMETERS)
    for record, lead in zip(records, leads[1:], strict=True):
        judged, decided = steering.judge(record, [])
        assert (decided, judged.lead_why) == (lead, record.lead_why), "the step's own figures lead to it"
        assert record.lead_why

    described = store.describe().mlflow_run
    assert described is not None
    for name in (metrics.LEAD_GROUPS, metrics.BUDGET_SHARE, metrics.EFFECTIVE_LEAD_GROUPS):
        logged = {point.step: point.value for point in mlflow.get_metric_history(described, name)}
        assert logged == {record.step: pytest.approx(record.metrics[name]) for record in records}, name
    assert [record.metrics[metrics.LEAD_GROUPS] for record in records] == leads[:-1]
    assert max(use.lag_max for record in records for use in record.groups) <= overlap.max_lag_versions
