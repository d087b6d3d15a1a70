"""Model directories: what is read from them, and what is said of a broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from driftline.errors import ConfigurationError
from driftline.weights.checkpoint import read_model_directory

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "vocab_size": 5,
}
TENSORS = {"model.embed_tokens.weight": torch.ones(5, 2), "lm_head.weight": torch.zeros(5, 2)}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def test_names_and_shapes_come_from_the_headers(model_dir: Path) -> None:
    found = read_model_directory(model_dir)
    assert found.shapes == {"model.embed_tokens.weight": (5, 2), "lm_head.weight": (5, 2)}
    assert found.max_positions == 64
    assert found.vocabulary == 5
    assert not found.tied_embeddings


def test_a_tied_model_has_no_output_head_even_if_its_file_does(model_dir: Path) -> None:
    (model_dir / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    found = read_model_directory(model_dir)
    assert found.tied_embeddings
    assert set(found.shapes) == {"model.embed_tokens.weight"}


def test_shards_are_read_through_their_index(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    weight_map = {name: f"part-{n}.safetensors" for n, name in enumerate(TENSORS)}
    for name, part in weight_map.items():
        save_file({name: TENSORS[name]}, model_dir / part)
    (model_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert set(read_model_directory(model_dir).shapes) == set(TENSORS)
    (model_dir / "part-1.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"part-1\.safetensors is missing"):
        read_model_directory(model_dir)


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no directory"):
        read_model_directory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", None, r"config\.json is missing"),
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"[]", "no JSON object"),
        ("config.json", b"{}", "names no `architectures`"),
        ("config.json", b'{"architectures": ["X"]}', "names no `vocab_size`"),
        ("model.safetensors", None, r"neither model\.safetensors nor"),
        ("model.safetensors", b"", "no safetensors file|bytes"),
        ("model.safetensors", b"\xff" * 32, "no safetensors file"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]", "no safetensors file"),
    ],
)
def test_a_broken_directory_says_what_is_wrong(model_dir: Path, file: str, content: bytes | None, said: str) -> None:
    if content is None:
        (model_dir / file).unlink()
    else:
        (model_dir / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        read_model_directory(model_dir)


def test_a_truncated_weights_file_is_found_without_reading_the_weights(model_dir: Path) -> None:
    file = model_dir / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ConfigurationError, match="bytes, its header says"):
        read_model_directory(model_dir)
