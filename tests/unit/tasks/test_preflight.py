"""What is wrong at start is said before anything is done."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from driftline.errors import ConfigurationError, EnvironmentFailed, StoreUnavailable, TrackingUnavailable
from driftline.params import RunParameters, Settings
from tasks import preflight
from tests.support.scripted_s3 import ScriptedS3, serving

NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens there."""


def parameters(**sections: Any) -> RunParameters:
    return RunParameters.model_validate(sections)


def test_a_store_that_is_not_there_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "STORE_PATIENCE_S", 0.1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
        preflight.check_store(Settings(s3_endpoint=NOBODY))  # pyright: ignore[reportCallIssue]


def test_a_bucket_that_ignores_conditional_writes_is_refused(monkeypatch: pytest.MonkeyPatch):
    """rclone and others take `If-Match` and `If-None-Match` for granted: a run would lose its commits there."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    script = ScriptedS3()
    with serving(script) as endpoint:
        found = Settings(s3_endpoint=endpoint, bucket="bucket")  # pyright: ignore[reportCallIssue]
        preflight.check_store(found)
        script.ignores_conditions = True
        with pytest.raises(ConfigurationError, match=r"ignores If-None-Match.*SeaweedFS"):
            preflight.check_store(found)
    assert list(script.objects.list("probe/")) == []


async def test_a_run_that_is_resumed_waits_for_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "RETRY_S", 0.0)
    tries: list[int] = []

    def away_twice() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise TrackingUnavailable("MLflow is away")

    await preflight._patiently(away_twice, 10.0)  # pyright: ignore[reportPrivateUsage]
    assert len(tries) == 3


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ConfigurationError("wrong")])
async def test_a_new_run_waits_for_nothing_and_no_run_waits_for_a_wrong_setting_to_pass(error: Exception):
    def fails() -> None:
        raise error

    patience_s = 10.0 if isinstance(error, ConfigurationError) else 0.0
    with pytest.raises(type(error)):
        await preflight._patiently(fails, patience_s)  # pyright: ignore[reportPrivateUsage]


async def test_the_shipped_environment_is_taken():
    await preflight.check_environment(parameters())


async def test_an_unknown_environment_is_refused_with_the_closest():
    with pytest.raises(ConfigurationError, match=r"did you mean 'pointer_chase/v1'\?"):
        await preflight.check_environment(parameters(environment={"id": "pointer_chese/v1"}))


@pytest.mark.parametrize(("name", "error"), [("Raises", EnvironmentFailed), ("Blocks", EnvironmentFailed)])
async def test_an_environment_that_misbehaves_is_refused(name: str, error: type[Exception]):
    section = {"id": f"tests.support.environments:{name}", "step_deadline_s": 0.2}
    with pytest.raises(error, match=r"pointer_chase/v1|broken"):
        await preflight.check_environment(parameters(environment=section))


@pytest.mark.parametrize(("runs_in", "elsewhere"), [("loop", False), ("thread", True), ("process", True)])
async def test_the_environment_is_played_where_a_cell_plays_it(runs_in: str, elsewhere: bool):
    """One that works in the event loop may not in a thread, and the other way about."""
    section = {"id": "tests.support.environments:TellsWhere", "runs_in": runs_in, "step_deadline_s": 30.0}
    with pytest.raises(EnvironmentFailed, match="task") as raised:
        await preflight.check_environment(parameters(environment=section))
    here = f"{os.getpid()}/{threading.get_ident()}"
    assert (f"played in {here}" not in str(raised.value)) == elsewhere, raised.value
    assert (f"played in {os.getpid()}/" not in str(raised.value)) == (runs_in == "process")


async def test_a_warm_start_needs_demonstrations():
    section = {"id": "tests.support.environments:NoDemonstrations"}
    with pytest.raises(ConfigurationError, match=r"set model\.source to directory"):
        await preflight.check_environment(parameters(environment=section))


async def test_each_environment_of_a_mixture_is_played():
    await preflight.check_environment(
        parameters(environment={"id": "pointer_chase/v1 * 3 + tests.support.environments:QuickDice"})
    )
    one = parameters(environment={"id": "pointer_chase/v1 + tests.support.environments:Broken"})
    with pytest.raises(EnvironmentFailed, match=r"environment broken/v1, task .*broken"):
        await preflight.check_environment(one)
