"""The trainer of a run, on the pool `train-gpu`."""

from prefect import flow

from tasks.overlap import run_trainer


@flow(name="training", flow_run_name="trainer-of-{run}")
async def training(run: str) -> None:
    """Train on the run's trajectories, and publish a policy version after each step, until the run is over.

    Args:
        run: Name of the run; the parent flow has written its `run.json`.
    """
    await run_trainer(run)
