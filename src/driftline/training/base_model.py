"""The base policy of a run: what it is made from, and where its model directory lies in the store.

Imports no torch, so that flows may use it. Making one is `driftline.training.warm_start`, a process.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from driftline.errors import ConfigurationError, ObjectMissing
from driftline.params import ModelParameters, RunParameters
from driftline.records import ModelSource, decode, encode
from driftline.store import files, keys
from driftline.store.protocol import ObjectStore

CODE_VERSION = 1
"""Raised whenever the same inputs would make another model."""


class BaseModelSpec(BaseModel):
    """Everything that the base policy depends on; `digest` is its address in the store."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: ModelParameters
    environment: str
    max_turns: int
    max_model_len: int
    seed: int

    @classmethod
    def of(cls, params: RunParameters) -> BaseModelSpec:
        """The spec of a run's base policy."""
        return cls(
            model=params.model,
            environment=params.environment.id,
            max_turns=params.environment.max_turns,
            max_model_len=params.engine.max_model_len,
            seed=params.seed,
        )

    def digest(self) -> str:
        """Hash of the inputs (of a directory: of its files), 32 hexadecimal digits.

        Raises:
            ConfigurationError: `model.directory` is no model directory.
        """
        return hashlib.sha256(json.dumps(self._inputs(), sort_keys=True).encode()).hexdigest()[:32]

    def _inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {"code": CODE_VERSION, "source": self.model.source}
        if self.model.source == "warm_start":
            return inputs | {"spec": self.model_dump(mode="json", exclude={"model": {"rendering"}})}
        if self.model.source == "directory":
            directory = Path(self.model.directory or "")
            check_model_directory(directory)
            return inputs | {"files": files.directory_digest(directory)}
        return inputs


def check_model_directory(directory: Path) -> None:
    """See that a directory has the parts of a model.

    Raises:
        ConfigurationError: It has not; the message names what is missing.
    """
    where = f"model.directory: {str(directory)!r}"
    if not directory.is_dir():
        raise ConfigurationError(f"{where} is no directory on this machine")
    parts = {"config.json": "config.json", "*.safetensors": "weights in *.safetensors", "tokenizer.json": ""}
    missing = [shown or pattern for pattern, shown in parts.items() if not list(directory.glob(pattern))]
    if missing:
        raise ConfigurationError(
            f"{where} is no model directory, it has no {', no '.join(missing)}: save model and tokenizer with "
            "`save_pretrained`"
        )


def manifest_key(digest: str) -> str:
    """Key of a model's manifest, which is written after its files."""
    return f"{keys.model_prefix(digest)}manifest.json"


def find(store: ObjectStore, digest: str) -> ModelSource | None:
    """The model directory that was made from inputs of this digest, None where there is none yet."""
    key = manifest_key(digest)
    try:
        return decode(ModelSource, store.get(key).body, key=key)
    except ObjectMissing:
        return None


def publish(store: ObjectStore, digest: str, directory: Path, description: str) -> ModelSource:
    """Write a model directory to the store, its manifest last."""
    configuration = json.loads((directory / "config.json").read_text())
    prefix = keys.model_prefix(digest)
    source = ModelSource(
        digest=digest,
        prefix=prefix,
        files=files.upload_directory(store, prefix, directory),
        tied_embeddings=bool(configuration.get("tie_word_embeddings", False)),
        description=description,
    )
    store.put(manifest_key(digest), encode(source))
    return source
