"""A new version of a task set. Scheduled each night, by hand, and (its first version alone) part of every run.

plan -> propose and validate, window by window -> drop duplicates -> measure -> curate and publish -> report
"""

from datetime import datetime

from prefect import flow
from prefect.runtime import flow_run

from tasks import refresh
from tasks.refresh import TaskSetVersions, publish_task_set
from tasks.refresh_plan import RefreshParameters
from tasks.refresh_stages import windows_of

DEFAULTS = RefreshParameters()  # pyright: ignore[reportCallIssue]


@flow(name="environment-refresh", flow_run_name="refresh-{task_set}", timeout_seconds=14_400)
async def environment_refresh(
    environment: str = "pointer_chase/v1",
    task_set: str = "pointer-chase",
    train_tasks: int = 4096,
    held_out_tasks: int = 256,
    seed: int | None = None,
    run: str | None = None,
    options: RefreshParameters = DEFAULTS,
    first: bool = False,
) -> TaskSetVersions:
    """Publish a version of a task set, and the held-out tasks beside it.

    A flow run that failed or was killed is started again with the same seed: what its stages had made is found in
    the store, and nothing was published.

    Args:
        environment: Versioned environment id, or package.module:Class.
        task_set: Name under which the tasks are published.
        train_tasks: Most training tasks.
        held_out_tasks: Number of held-out tasks; they do not depend on the seed.
        seed: The same seed, with the same other arguments, is the same refresh, and gives the same version. None: the
            day of the flow run's schedule.
        run: Run whose policy measures the tasks. None: the newest over this task set, one under way before others.
        options: How the version is made.
        first: Only draw a run's first version from the seed, unmeasured, whatever is published already.
    """
    if seed is None:
        seed = day_of(flow_run.scheduled_start_time)
    if first:
        return await publish_task_set(environment, task_set, train_tasks, held_out_tasks, seed)
    plan = await refresh.plan_refresh(environment, task_set, train_tasks, held_out_tasks, seed, options, run)
    await refresh.validate_windows(environment, windows_of(plan), options.step_deadline_s)
    await refresh.drop_duplicates(plan)
    await refresh.measure(plan)
    published = await refresh.publish_version(plan)
    await refresh.report(plan, published)
    return TaskSetVersions(published.name, published.version, published.held_out_version)


def day_of(scheduled: datetime) -> int:
    """A seed that is new each day."""
    return scheduled.toordinal()
