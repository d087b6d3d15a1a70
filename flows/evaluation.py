"""Held-out tasks against policy versions of a run, on the pool `rollout-gpu`."""

from prefect import flow

from tasks.overlap import run_evaluation


@flow(name="evaluation", flow_run_name="evaluation-of-{run}")
async def evaluation(run: str, versions: list[int]) -> None:
    """Play the run's held-out tasks with each of the policy versions; results go to the store.

    Args:
        run: Name of the run.
        versions: Policy versions, 0 being the base policy.
    """
    await run_evaluation(run, versions)
