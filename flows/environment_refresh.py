"""A new version of a task set: propose, validate, publish. Scheduled each night, and part of every run."""

from datetime import datetime

from prefect import flow
from prefect.runtime import flow_run

from tasks.refresh import TaskSetVersions, publish_task_set


@flow(name="environment-refresh", flow_run_name="refresh-{task_set}", timeout_seconds=1800)
async def environment_refresh(
    environment: str = "pointer_chase/v1",
    task_set: str = "pointer-chase",
    train_tasks: int = 4096,
    held_out_tasks: int = 256,
    seed: int | None = None,
) -> TaskSetVersions:
    """Publish a version of a task set, and the held-out tasks beside it.

    Args:
        environment: Versioned environment id, or package.module:Class.
        task_set: Name under which the tasks are published.
        train_tasks: Number of training tasks.
        held_out_tasks: Number of held-out tasks; they do not depend on the seed.
        seed: The same seed gives the same tasks, and so the same version. None: the day of the flow run's schedule.
    """
    if seed is None:
        seed = day_of(flow_run.scheduled_start_time)
    return await publish_task_set(environment, task_set, train_tasks, held_out_tasks, seed)


def day_of(scheduled: datetime) -> int:
    """A seed that is new each day."""
    return scheduled.toordinal()
