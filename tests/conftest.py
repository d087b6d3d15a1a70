"""Fixtures that several suites share. Keep it light: imports of heavy parts belong inside a fixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from driftline.store.client import S3Store
    from tests.support.seaweed import Seaweed


# How long an example takes is the machine's; a test that hangs ends by pytest's own timeout.
hypothesis.settings.register_profile("driftline", deadline=None)
hypothesis.settings.load_profile("driftline")


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with one bucket, started once a session. Use a run name of your own in it."""
    from tests.support.seaweed import running_seaweed

    with running_seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_store(seaweed: Seaweed) -> S3Store:
    """A client of the shared bucket."""
    return seaweed.store()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server, started once a session. Use experiments and models of your own in it."""
    from tests.support.mlflow_server import running_mlflow

    with running_mlflow(tmp_path_factory.mktemp("mlflow")) as address:
        yield address
