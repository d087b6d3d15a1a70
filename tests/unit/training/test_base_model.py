"""What a base policy is addressed by, and which directories are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.store.memory import MemoryStore
from driftline.training.base_model import BaseModelSpec, check_model_directory, find, manifest_key, publish


def spec(**changes: object) -> BaseModelSpec:
    sections: dict[str, dict[str, object]] = {}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            sections.setdefault(section, {})[field] = value
    seed = changes.get("seed", 0)
    return BaseModelSpec.of(RunParameters.model_validate({"seed": seed, **sections}))


def model_directory(folder: Path, *, tied: bool = False) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": tied}))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"model__hidden_size": 64},
        {"model__warm_start_steps": 10},
        {"model__tie_embeddings": True},
        {"environment__id": "other/v1"},
        {"environment__max_turns": 3},
        {"engine__max_model_len": 512},
    ],
)
def test_every_input_changes_the_address(change: dict[str, object]):
    assert spec(**change).digest() != spec().digest()


def test_what_does_not_enter_the_weights_does_not_change_the_address():
    assert spec(training__steps=3, rollout__group_size=4, model__rendering="chat").digest() == spec().digest()


def test_a_directory_is_addressed_by_its_files(tmp_path: Path):
    directory = model_directory(tmp_path)
    chosen = spec(model__source="directory", model__directory=str(directory))
    before = chosen.digest()
    assert chosen.digest() == before
    (directory / "model.safetensors").write_bytes(b"other weights")
    assert chosen.digest() != before


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", r"no weights in \*\.safetensors"),
        ("tokenizer.json", "no tokenizer.json"),
    ],
)
def test_a_directory_that_is_no_model_is_refused(tmp_path: Path, missing: str, message: str):
    directory = model_directory(tmp_path)
    check_model_directory(directory)
    (directory / missing).unlink()
    with pytest.raises(ConfigurationError, match=message):
        check_model_directory(directory)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no directory on this machine"):
        spec(model__source="directory", model__directory=str(tmp_path / "nowhere")).digest()


def test_a_model_is_found_once_its_manifest_is_there(tmp_path: Path):
    store = MemoryStore()
    assert find(store, "d" * 32) is None
    source = publish(store, "d" * 32, model_directory(tmp_path, tied=True), "a model")
    assert find(store, "d" * 32) == source
    assert source.tied_embeddings
    assert [entry.key.removeprefix(source.prefix) for entry in source.files] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    store.delete([manifest_key("d" * 32)])
    assert find(store, "d" * 32) is None
