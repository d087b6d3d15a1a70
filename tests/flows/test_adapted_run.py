"""Questions of reasoning-gym from end to end: trained on, sampled by what is learned, then measured and curated.

Real flows, workers, vLLM and DeepSpeed. When the refresh comes, the run is over: what measures is a bounded rollout
(`measuring/local`) with the run's last policy.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import PrefectClient

from driftline.environment import resolve
from driftline.params import RunParameters
from driftline.refresh import strata
from driftline.rollout import assignment
from driftline.rollout.measure import CELL
from driftline.store import tasksets
from driftline.store.probes import ProbeBook, tokens_of
from driftline.store.run_store import RunStore
from flows.environment_refresh import environment_refresh
from flows.post_training import post_training
from tasks.refresh import TaskSetVersions
from tasks.refresh_plan import RefreshParameters, pinned_plan
from tasks.stores import run_store, shared_store
from tests.support.deployments import serving
from tests.support.local_mlflow import local_mlflow

NAME = "adapted-run"
PARTS = ("reasoning_gym/syllogism/v1", "reasoning_gym/course_schedule/v1")
BOTH = " + ".join(PARTS)
STEPS, PER_STEP, MEMBERS = 4, 4, 4
PROBED, PROBE_MEMBERS = 8, 4
OPTIONS = RefreshParameters.model_validate(
    {"proposals": 24, "window": 12, "probe_tasks": PROBED, "probe_members": PROBE_MEMBERS, "recent_steps": STEPS,
     "near_duplicate": 1.0, "step_deadline_s": 120.0}
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("surroundings"),
    pytest.mark.timeout(3000),
    # MLflow's own tables, which it here opens in this process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def parameters(model: Path) -> RunParameters:
    return RunParameters.model_validate(
        {
            "seed": 6,
            "model": {"source": "directory", "directory": str(model)},
            "environment": {
                "id": BOTH, "task_set": NAME, "train_tasks": 32, "held_out_tasks": 4, "max_turns": 1,
                "task_sampling": "learnability", "step_deadline_s": 120.0,
            },
            "rollout": {"group_size": MEMBERS, "groups_per_step": PER_STEP, "max_tokens_per_turn": 32},
            "overlap": {"lead_groups": PER_STEP},
            "engine": {"max_model_len": 640, "max_num_seqs": 16},
            "training": {"steps": STEPS, "micro_batch_tokens": 4096},
            "tracking": {"experiment": NAME, "registered_model": NAME, "traces_every_steps": 0},
        }
    )  # fmt: skip


@pytest.fixture
def mlflow(surroundings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    found = local_mlflow(tmp_path, monkeypatch, NAME)
    found.create_experiment("driftline-task-sets", artifact_location=(tmp_path / "datasets").as_uri())
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from tests.support.answering_model import answering_model

    return answering_model(tmp_path / "model", [resolve(part) for part in PARTS])


async def test_a_run_over_adapted_environments_and_the_refresh_that_its_policy_measures(
    client: PrefectClient, mlflow: MlflowClient, model: Path
):
    async with serving(client, "rollout-gpu", "train-gpu"):
        run = await post_training(params=parameters(model))
        store = run_store(run)
        check_run(store)
        check_sampling(store)
        published = await refresh()
        check_measured(store, published)
        measured = await measurings(client)
        assert [(state, len(name)) for name, state in measured] == [("COMPLETED", len("measuring-") + 16)]
        assert await refresh() == published
        assert await measurings(client) == measured, "what was measured is not played again"


def check_run(store: RunStore) -> None:
    """It has learned something of both environments, from answers that were right in part."""
    head, records = store.read_head()[0], store.steps()
    assert (head.state, len(records)) == ("finished", STEPS)
    assert [record.ledger.imbalance for record in records if record.ledger] == [0] * STEPS
    groups = RunStore(store.store, store.run).new_groups()
    members = [member for group in groups for member in group.trajectories]
    assert {member.status for member in members} == {"ok"}
    assert {member.environment for member in members} == {*PARTS}
    assert {member.reward for member in members} == {0.0, 1.0}
    assert {member.turns for member in members} == {1}
    assert any(use.weight and 0 < use.success_mean < 1 for record in records for use in record.groups)
    assert head.version is not None
    assert store.read_manifest(head.version).tensors != store.read_manifest(records[0].version_in).tensors
    evaluations = store.evaluations()
    assert [(found.version, found.invalid) for found in evaluations] == [(0, 0), (STEPS, 0)]
    assert [{*found.by_environment} for found in evaluations] == [{*PARTS}] * 2


def check_sampling(store: RunStore) -> None:
    """Without levels and pools, the strata are the environments; each group plays what the head's weights give."""
    head, seed = store.read_head()[0], 6
    assert [{*sampling.weights} <= {*PARTS} for sampling in head.task_sampling] == [True] * STEPS
    [(_, version)] = head.task_sets
    found = tasksets.load_set(store.store, NAME, version)
    members = strata.members(found, lambda task: None)
    assert {*members} == {*PARTS}
    for group in RunStore(store.store, store.run).new_groups():
        sampling = assignment.sampling_of(head.task_sampling, group.number)
        assert {member.stratum for member in group.trajectories} == {group.trajectories[0].environment}
        if sampling is not None:
            shares = strata.shares(members, members)
            index = assignment.stratified_task_index(seed, group.number, version, members, sampling, shares)
            assert group.task_id == found.tasks[index].id


async def refresh() -> TaskSetVersions:
    return await environment_refresh(
        environment=BOTH, task_set=NAME, train_tasks=48, held_out_tasks=4, seed=9, options=OPTIONS
    )


def check_measured(store: RunStore, published: TaskSetVersions) -> None:
    """The bounded rollout has played every probe group, once, with the run's last policy."""
    plan = pinned_plan(
        shared_store(), resolve(BOTH), NAME, seed=9, size=48, held_out_tasks=4, options=OPTIONS, environment=BOTH
    )
    assert (plan.run, plan.policy_version) == (store.run, STEPS)
    book = ProbeBook(store.store, store.run)
    request = book.read(plan.id)
    results = book.results(request)
    assert [result.number for result in results] == [*range(PROBED)]
    assert {(result.cell, result.policy_version) for result in results} == {(CELL, STEPS)}
    assert {result.attempts + result.invalid for result in results} == {PROBE_MEMBERS}
    assert {result.invalid for result in results} == {0}
    assert book.open_request() is None
    made = tasksets.load_set(store.store, NAME, published.version)
    manifest = tasksets.manifest(store.store, NAME, published.version)
    assert manifest.statistics["measure/tokens"] == tokens_of(results) > 0
    for result in results:
        note = made.notes.get(result.task_id)
        told = (note.attempts, note.solved) if note is not None else None
        # Always solved is retired; of what was never solved a share is kept.
        dropped = result.solved in (0, result.attempts)
        assert told == (result.attempts, result.solved) or (told is None and dropped), result
    assert {task.environment for task in made.tasks} == {*PARTS}


async def measurings(client: PrefectClient) -> list[tuple[str, str]]:
    """Name and state of the flow runs that have measured."""
    found = [one for one in await client.read_flow_runs() if one.name.startswith("measuring-")]
    return sorted((one.name, one.state.type.value if one.state else "") for one in found)
