"""The surroundings of a process: the one place that reads its environment. Part of `params`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Surroundings of a process, from environment variables. Credentials come through boto3's own chain."""

    model_config = SettingsConfigDict(env_prefix="DRIFTLINE_", env_ignore_empty=True, extra="ignore", frozen=True)

    s3_endpoint: str | None = Field(None, description="S3 endpoint URL; None is Amazon's own.")
    s3_region: str = "us-east-1"
    bucket: str = "driftline"
    mlflow_uri: str | None = Field(None, description="MLflow tracking URI; None writes no metrics.")
    work_dir: Path = Field(Path(".driftline"), description="Scratch space on this machine.")
    s3_port: int = Field(8333, ge=1, le=65535, description="Port of the local stack's S3 endpoint.")
    mlflow_port: int = Field(5000, ge=1, le=65535, description="Port of the local stack's MLflow page.")
    prefect_port: int = Field(4200, ge=1, le=65535, description="Port of the local stack's Prefect page.")
    sandbox: Literal["bubblewrap", "container", "none"] = Field(
        "bubblewrap", description="What environments run programs in; `none` has no walls (docs/sandbox.md)."
    )
    sandbox_image: str = Field("python:3.11-slim-bookworm", description="Image of the sandbox `container`.")
    api_token: SecretStr | None = None
    signing_key: SecretStr | None = Field(
        None, min_length=16, description="Key that signs the step records of runs started with it."
    )


class RankSettings(BaseSettings):
    """Which rank of a process group this process is, by the variables that torchrun sets; alone without them."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    rank: int = Field(0, ge=0, validation_alias="RANK")
    local_rank: int = Field(0, ge=0, validation_alias="LOCAL_RANK")
    world_size: int = Field(1, ge=1, validation_alias="WORLD_SIZE")


@cache
def settings() -> Settings:
    """The settings of this process."""
    return Settings()  # pyright: ignore[reportCallIssue]


def adopt_environment(values: Mapping[str, str]) -> None:
    """Add variables that are not set yet to this process's environment, and read the settings anew."""
    for name, value in values.items():
        os.environ.setdefault(name, value)
    settings.cache_clear()
