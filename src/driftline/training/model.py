# pyright: basic
"""The policy as a module that DeepSpeed can wrap: log-probabilities of chosen tokens, nothing more.

The output head runs only where a token was sampled, so that the logits of prompts and observations, most of a
batch, are never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from driftline.errors import ConfigurationError
from driftline.params import LoraParameters

SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change logits after the output head, which this module does not know."""


def open_model(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load a model directory for training: no cache, no dropout (the policy that samples has none).

    Raises:
        ConfigurationError: It is no model that transformers loads, or one with transformed logits.
    """
    try:
        configuration = AutoConfig.from_pretrained(directory)
        _disable_dropout(configuration)
        model = AutoModelForCausalLM.from_pretrained(
            directory, config=configuration, dtype=dtype, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{directory} is no language model that transformers loads: {error}") from None
    scaled = [name for name in SCALED_LOGITS if getattr(configuration, name, None) not in (None, 1, 1.0)]
    if scaled:
        raise ConfigurationError(f"{directory}: models with {scaled[0]} change their logits, which is not supported")
    return model


def _disable_dropout(configuration: PreTrainedConfig) -> None:
    for name, value in configuration.to_dict().items():
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float):
            setattr(configuration, name, 0.0)


def add_adapters(model: PreTrainedModel, lora: LoraParameters, seed: int) -> None:
    """Freeze a model, and give its linear layers adapters, which at first change nothing (`B` is zero).

    The same seed gives the same adapters, in every process.

    Raises:
        ConfigurationError: The model has no such layers, or they are its embeddings or its output head.
    """
    from peft import LoraConfig, inject_adapter_in_model

    outside = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    ends = [name.rpartition(".")[2] for name, module in model.named_modules() if id(module) in outside]
    shared = sorted(set(ends) & set(lora.targets))
    if shared:
        raise ConfigurationError(f"lora.targets: {shared[0]!r} is an embedding or the output head: leave it out")
    alpha: Any = lora.alpha
    config = LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=list(lora.targets), lora_dropout=0.0, bias="none"
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ConfigurationError(f"lora.targets: {error}") from None
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_A." in name or ".lora_B." in name)


@dataclass(frozen=True, slots=True)
class Padded:
    """One micro-batch: right-padded token ids, and the positions of the tokens to score."""

    ids_BT: Tensor
    rows_N: Tensor
    columns_N: Tensor


def pad(sequences: Sequence[Tensor], sampled: Sequence[Tensor]) -> Padded:
    """Pad sequences on the right. With causal attention no real token sees the padding, so no mask is needed.

    Args:
        sequences: Token ids of each sequence; none at all makes a dummy with one token to score.
        sampled: Which tokens to score, for each sequence; never the first.
    """
    if not sequences:
        return Padded(torch.zeros(1, 2, dtype=torch.long), torch.tensor([0]), torch.tensor([1]))
    ids_BT = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
    mask_BT = nn.utils.rnn.pad_sequence(list(sampled), batch_first=True)
    rows_N, columns_N = mask_BT.nonzero(as_tuple=True)
    return Padded(ids_BT, rows_N, columns_N)


class TokenScorer(nn.Module):
    """Log-probability and entropy of chosen tokens under a causal language model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def head(self, hidden_NH: Tensor) -> Tensor:
        """Logits `[N, V]` of hidden states `[N, H]`."""
        head: Any = self.model.get_output_embeddings()
        return head(hidden_NH)

    def forward(
        self, ids_BT: Tensor, rows_N: Tensor, columns_N: Tensor, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Score the tokens at (`rows_N`, `columns_N`), each given what precedes it in its row.

        Args:
            ids_BT: Token ids, right-padded.
            rows_N: Rows of the tokens.
            columns_N: Their columns, at least 1.
            temperature: Divides the logits, as it did when the tokens were sampled.

        Returns:
            Log-probabilities `[N]` in nats, float32, and entropies `[N]` in nats without gradient.
        """
        hidden_BTH = self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        logits_NV = self.head(hidden_BTH[rows_N, columns_N - 1]).float() / temperature
        logprobs_NV = logits_NV.log_softmax(-1)
        with torch.no_grad():
            entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
        return logprobs_NV.gather(1, ids_BT[rows_N, columns_N].unsqueeze(1)).squeeze(1), entropy_N
