"""A run's description and head: created once, compared on resume, ended with its reason."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from driftline import __version__
from driftline.errors import ConfigurationError, DriftlineError, ObjectMissing
from driftline.params import RunParameters, settings
from driftline.records import Head, ModelSource, RunDescription, RunState
from driftline.store import keys
from driftline.store.run_store import RunStore
from tasks.refresh import TaskSetVersions
from tasks.stores import run_store, shared_store

logger = logging.getLogger(__name__)

END_PATIENCE_S = 5.0


def tags(task_set_version: str) -> dict[str, str]:
    """What the MLflow run is found by."""
    return {"driftline.code_version": code_version(), "driftline.task_set": task_set_version}


async def describe(run: str) -> tuple[RunDescription, RunParameters]:
    """A run's description and parameters.

    Raises:
        ObjectMissing: There is no such run.
        ConfigurationError: Its parameters are those of another version of Driftline.
    """
    description = await asyncio.to_thread(run_store(run).describe)
    return description, stored_parameters(description)


def stored_parameters(description: RunDescription) -> RunParameters:
    """The parameters in `run.json`."""
    try:
        return RunParameters.model_validate(description.parameters)
    except ValueError as error:
        raise ConfigurationError(
            f"run {description.run!r} was started by driftline {description.code_version}, whose parameters this "
            f"version does not take: use that version, or start a new run ({error})"
        ) from None


async def find_description(run: str) -> RunDescription | None:
    """A run's description, None before it has one."""
    try:
        return await asyncio.to_thread(run_store(run).describe)
    except ObjectMissing:
        return None


async def was_begun(run: str) -> bool:
    """Whether the store holds anything of the run, be it only that its parent was killed and is to be resumed."""
    store = shared_store()
    return await asyncio.to_thread(lambda: next(iter(store.list(keys.run_prefix(run))), None) is not None)


def check_agreement(given: RunParameters, description: RunDescription) -> RunParameters:
    """The parameters with which to resume a run: its own, with which everything that was given has to agree.

    Raises:
        ConfigurationError: Names the first field that differs, with both values.
    """
    for field, value in set_fields(given):
        stored: Any = description.parameters
        for part in field.split("."):
            stored = stored.get(part) if isinstance(stored, Mapping) else None
        if stored != value:
            raise ConfigurationError(
                f"{field}: run {description.run!r} was started with {stored!r}, now {value!r} is asked for; a run "
                "keeps its parameters: leave the field out to resume it, or leave `run` out to start a new one"
            )
    return stored_parameters(description)


def set_fields(model: BaseModel, prefix: str = "") -> list[tuple[str, Any]]:
    """The fields that somebody has set, by dotted name, as JSON values."""
    dumped = model.model_dump(mode="json")
    found: list[tuple[str, Any]] = []
    for name in sorted(model.model_fields_set):
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found += set_fields(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", dumped[name]))
    return found


async def create(
    run: str, params: RunParameters, model: ModelSource, task_sets: TaskSetVersions, mlflow_run: str | None
) -> RunDescription:
    """Write `run.json`, the first object of a run."""
    description = RunDescription(
        run=run,
        created_unix=time.time(),
        parameters=params.model_dump(mode="json"),
        code_version=await asyncio.to_thread(code_version),
        model=model,
        task_set=task_sets.version,
        held_out_task_set=task_sets.held_out_version,
        mlflow_run=mlflow_run,
        signed=settings().signing_key is not None,
    )
    await asyncio.to_thread(run_store(run).create, description)
    return description


def first_head(description: RunDescription, lead_groups: int) -> Head:
    """The head of a run in which nothing has happened; its first trainer publishes version 0."""
    return Head(
        epoch=0,
        step=0,
        version=None,
        record=None,
        spent=0,
        given_up=(),
        lead_groups=lead_groups,
        task_sets=((0, description.task_set),),
    )


async def open_head(description: RunDescription, params: RunParameters) -> RunState | None:
    """Make the run's head, or let a run that had failed or was cancelled go on.

    Returns:
        The state that the run had, None if it never began.
    """

    def swap() -> RunState | None:
        store = run_store(description.run)
        try:
            head, etag = store.read_head()
        except ObjectMissing:
            store.create_head(first_head(description, params.overlap.lead_groups))
            return None
        if head.state in ("failed", "cancelled"):
            store.swap_head(replace(head, state="running", reason=""), etag)
        return head.state

    return await asyncio.to_thread(swap)


async def end(run: str, state: RunState, reason: str) -> None:
    """Write into the run's head how it ended, unless it says so already. A store that is away is only logged."""

    def write() -> None:
        try:
            RunStore(shared_store(patience_s=END_PATIENCE_S), run).end(state, reason)
        except ObjectMissing:
            return
        except DriftlineError as error:
            logger.warning("could not write that run %s has %s: %s", run, state, error)

    await asyncio.to_thread(write)


def code_version() -> str:
    """Driftline's version, with the commit of the working directory where it is a checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+{found.stdout.strip()}"
