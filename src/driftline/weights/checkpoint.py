"""What a model directory holds, read from the headers of its safetensors files. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from driftline.errors import ConfigurationError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
OUTPUT_HEAD = "lm_head.weight"
MAX_HEADER_BYTES = 100 * 2**20

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model directory whose files are whole.

    `shapes` names every tensor that the model is made of; with tied embeddings that leaves out the output head.
    """

    path: Path
    config: Mapping[str, Any]
    shapes: Shapes

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the embedding."""
        return bool(self.config.get("tie_word_embeddings", False))

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows."""
        return int(self.config["vocab_size"])

    @property
    def max_positions(self) -> int | None:
        """The longest context the model was made for, in tokens, where its configuration says so."""
        value = self.config.get("max_position_embeddings")
        return value if isinstance(value, int) else None


def read_model_directory(path: Path) -> ModelDirectory:
    """Check a model directory and read its layout, without reading its weights.

    Raises:
        ConfigurationError: It is no model directory, or incomplete; the message says what is missing.
    """
    if not path.is_dir():
        raise ConfigurationError(f"{path} is no directory: give a model directory as `save_pretrained` writes it")
    config = _json(path / CONFIG, path)
    if not config.get("architectures"):
        raise ConfigurationError(f"{path}/{CONFIG} names no `architectures`: it is not a language model's")
    if not isinstance(config.get("vocab_size"), int):
        raise ConfigurationError(f"{path}/{CONFIG} names no `vocab_size`: it is not a language model's")
    shapes = {name: shape for file in weight_files(path) for name, shape in _header(file).items()}
    directory = ModelDirectory(path, config, shapes)
    if directory.tied_embeddings:
        shapes.pop(OUTPUT_HEAD, None)
    return directory


def header_metadata(body: bytes) -> dict[str, str]:
    """The text that a whole safetensors object carries in its header; empty where there is none."""
    length = int.from_bytes(body[:8], "little")
    header = cast("dict[str, Any]", json.loads(body[8 : 8 + length]))
    return cast("dict[str, str]", header.get("__metadata__") or {})


def weight_files(path: Path) -> list[Path]:
    """The files that hold a model directory's weights.

    Raises:
        ConfigurationError: There are none.
    """
    if (path / INDEX).is_file():
        weight_map = cast("dict[str, str]", _json(path / INDEX, path).get("weight_map", {}))
        return [path / name for name in sorted(set(weight_map.values()))]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    raise ConfigurationError(f"{path} has neither {SINGLE} nor {INDEX}: save the model with safe_serialization")


def _json(file: Path, directory: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"{directory} is no model directory: {file.name} is missing") from None
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON ({error}): it was truncated or overwritten") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{file} holds no JSON object")
    return cast("dict[str, Any]", value)


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of one safetensors file, whose length must match its header."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError("the header is too long")
            header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    except FileNotFoundError:
        raise ConfigurationError(f"{file} is missing, though {INDEX} names it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file} is no safetensors file ({error}): it was truncated or overwritten"
        ) from None
    if file.stat().st_size != 8 + length + end:
        raise ConfigurationError(f"{file} has {file.stat().st_size} bytes, its header says {8 + length + end}")
    return shapes
