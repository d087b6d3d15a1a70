"""What is wrong at start is said before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from driftline.errors import ConfigurationError, EnvironmentFailed, StoreUnavailable
from driftline.params import RunParameters, Settings
from tasks import preflight

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


async def test_a_warm_start_needs_demonstrations():
    section = {"id": "tests.support.environments:NoDemonstrations"}
    with pytest.raises(ConfigurationError, match=r"set model\.source to directory"):
        await preflight.check_environment(parameters(environment=section))
