"""A bounded rollout that measures tasks with the policy of a run that is not under way, on the pool `rollout-gpu`."""

from prefect import flow

from tasks.overlap import run_measuring


@flow(name="measuring", flow_run_name="measuring-{request}")
async def measuring(run: str, request: str) -> None:
    """Play a request for probe groups with the run's newest policy; results go to the store.

    Args:
        run: Name of the run.
        request: Id of the request.
    """
    await run_measuring(run, request)
