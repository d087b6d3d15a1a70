"""A whole post-training run.

    preflight -> environment refresh -> base policy -> rollout || training -> evaluation -> registration -> report

The children run as deployments on their own pools; this flow owns their fate.
"""

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from driftline.params import RunParameters
from driftline.records import RunDescription
from flows.environment_refresh import environment_refresh
from tasks import overlap, runs
from tasks.model import base_policy
from tasks.naming import name_of
from tasks.preflight import preflight
from tasks.registration import export_policy, register
from tasks.reporting import publish_report
from tasks.tracking import ended_run, open_mlflow_run

DEFAULTS = RunParameters()  # pyright: ignore[reportCallIssue]


@flow(name="post-training", flow_run_name="post-training-{params.environment.task_set}-seed{params.seed}")
async def post_training(params: RunParameters = DEFAULTS, run: str | None = None) -> str:
    """Post-train a policy by reinforcement learning; returns the name of the run.

    Args:
        params: The run's parameters. What is left out has its default.
        run: Name of a run to resume. Parameters that are given have to be those it was started with.
    """
    name = run or name_of(flow_run.id, flow_run.scheduled_start_time)
    params, description = await preflight(params, name, resume=run is not None, deployments=overlap.DEPLOYMENTS)
    get_run_logger().info("run %s: `driftline report --run %s` shows how it goes", name, name)
    if description is None:
        description = await begin(name, params)
    elif description.mlflow_run is not None:
        await open_mlflow_run(name, params, runs.tags(description.task_set))
    async with ended_run(description.mlflow_run):
        await go_on(description, params)
    return name


async def begin(run: str, params: RunParameters) -> RunDescription:
    """Make what a run starts from, and write its description, which never changes."""
    wanted = params.environment
    task_sets = await environment_refresh(
        environment=wanted.id,
        task_set=wanted.task_set,
        train_tasks=wanted.train_tasks,
        held_out_tasks=wanted.held_out_tasks,
        seed=params.seed,
        first=True,
    )
    model = await base_policy(params)
    mlflow_run = await open_mlflow_run(run, params, runs.tags(task_sets.version))
    async with ended_run(mlflow_run, only_if_it_fails=True):
        return await runs.create(run, params, model, task_sets, mlflow_run)


async def go_on(description: RunDescription, params: RunParameters) -> None:
    """Take a run from where it stands to its end. What is done already is not done again."""
    run = description.run
    if await runs.open_head(description, params) != "finished":
        await overlap.roll_out_and_train(run, params)
    versions = await overlap.versions_to_evaluate(run)
    if versions:
        await overlap.evaluate_on_pool(run, params, versions)
    policy = await export_policy(description, params)
    await register(description, params, policy)
    await publish_report(description)
