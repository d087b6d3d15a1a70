"""Tasks try again what may pass by itself, and nothing else."""

from __future__ import annotations

import pytest
from prefect import flow, task

from driftline.errors import ConfigurationError, StoreUnavailable
from tasks.refresh import publish_task_set
from tasks.retries import may_pass


@pytest.mark.parametrize(("error", "tries"), [(StoreUnavailable("away"), 3), (ConfigurationError("wrong"), 1)])
async def test_only_outages_are_tried_again(error: Exception, tries: int):
    made: list[int] = []

    @task(retries=2, retry_delay_seconds=0, retry_condition_fn=may_pass)
    async def attempt() -> None:
        made.append(1)
        raise error

    @flow
    async def trying() -> None:
        await attempt()

    with pytest.raises(type(error)):
        await trying()
    assert len(made) == tries


def test_the_refresh_tries_again_only_so():
    assert publish_task_set.retry_condition_fn is may_pass
