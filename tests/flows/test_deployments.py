"""`prefect.yaml` as `prefect deploy --all` puts it on a server, and as users call it."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import PrefectHTTPStatusError

from driftline.errors import ConfigurationError
from tasks import preflight
from tests.support.deployments import deploy, ours, prefect

pytestmark = pytest.mark.usefixtures("surroundings")


async def start(client: PrefectClient, name: str, **given: Any) -> Any:
    deployment = await client.read_deployment_by_name(name)
    return await client.create_flow_run_from_deployment(deployment.id, parameters=given)


async def test_all_deployments_are_made_without_a_path_of_this_machine(client: PrefectClient):
    await deploy(client)
    found = await ours(client)
    assert len(found) == 9
    for deployment in found:
        assert deployment.pull_steps == [
            {"prefect.deployments.steps.set_working_directory": {"directory": "{{ $DRIFTLINE_HOME }}"}}
        ]


async def test_the_refresh_runs_each_night(client: PrefectClient):
    await deploy(client)
    nightly = await client.read_deployment_by_name("environment-refresh/nightly")
    [schedule] = nightly.schedules
    assert isinstance(schedule.schedule, CronSchedule)
    assert (schedule.schedule.cron, schedule.schedule.timezone, schedule.active) == ("0 3 * * *", "UTC", True)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"sede": 1}, "sede"),
        ({"training": {"stepz": 1}}, "stepz"),
        ({"training": {"steps": 0}}, "params.training.steps"),
        ({"rollout": {"top_p": 1.5}}, "params.rollout.top_p"),
    ],
)
async def test_an_unknown_or_impossible_parameter_is_refused_by_the_server(
    client: PrefectClient, params: dict[str, Any], named: str
):
    await deploy(client)
    with pytest.raises(PrefectHTTPStatusError) as refusal:
        await start(client, "post-training/local", params=params)
    assert named in refusal.value.response.text


async def test_a_part_of_the_parameters_is_enough(client: PrefectClient):
    await deploy(client)
    flow_run = await start(client, "post-training/local", params={"seed": 1})
    assert flow_run.parameters["params"] == {"seed": 1}


async def test_the_command_line_refuses_an_unknown_parameter_with_a_non_zero_exit(client: PrefectClient):
    await deploy(client)
    code, output = await prefect("deployment", "run", "post-training/local", "--param", 'params={"sede": 1}')
    assert code != 0
    assert "'sede' was unexpected" in output


async def test_a_pool_without_a_worker_is_named(client: PrefectClient):
    await deploy(client)
    with pytest.raises(ConfigurationError, match=r"no worker polls the work pool 'train-gpu'.*driftline up"):
        await preflight.check_deployment("training/local", patience_s=0.1)
