"""One rollout cell of a run, on the pool `rollout-gpu`."""

from prefect import flow

from tasks.overlap import run_cell


@flow(name="rollout", flow_run_name="cell-{cell}-of-{run}")
async def rollout(run: str, cell: str = "c0") -> None:
    """Generate trajectories for a run until it is over.

    Args:
        run: Name of the run; the parent flow has written its `run.json`.
        cell: Name of the cell, unique among the cells that work for the run at the same time.
    """
    await run_cell(run, cell)
