"""Sorted, padded micro-batches on a GPU give the gradient of the unpadded sequences, and cost less than one batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from driftline.training.losses import sequence_weights
from driftline.training.packing import cut, padded_tokens

pytestmark = pytest.mark.gpu

VOCABULARY = 43


class CausalModel(nn.Module):
    """A small decoder with causal attention, so that no token sees the padding behind it."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)}) for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        hidden = self.embedding(ids_BT)
        for layer in self.layers:
            query, key, value = layer["qkv"](hidden).chunk(3, -1)  # pyright: ignore[reportIndexIssue]
            attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + layer["out"](attended)  # pyright: ignore[reportIndexIssue]
        return torch.log_softmax(self.head(hidden), -1)


def episodes(count: int, seed: int = 0) -> list[Tensor]:
    """Token sequences with a long tail of lengths, as the demonstration's are."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (torch.empty(count).exponential_(1 / 30, generator=generator) + 4).clamp(max=160).long().tolist()
    return [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in lengths]


def token_loss(model: nn.Module, sequences: Sequence[Tensor], weights: Tensor, device: torch.device) -> Tensor:
    """Weighted negative log-likelihood of all tokens but the first of each sequence."""
    ids_BT = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True).to(device)
    real_BT = nn.utils.rnn.pad_sequence([torch.ones_like(s) for s in sequences], batch_first=True).to(device)
    logprobs_BT = model(ids_BT[:, :-1]).gather(-1, ids_BT[:, 1:, None])[..., 0]
    return -(logprobs_BT * real_BT[:, 1:] * weights.to(device)[:, None]).sum()


def gradient(
    model: nn.Module, plans: Sequence[Sequence[int]], sequences: list[Tensor], device: torch.device
) -> Tensor:
    model.to(device).zero_grad()
    lengths = torch.tensor([len(s) - 1 for s in sequences])
    weights = sequence_weights(lengths, "token_mean", 1.0).to(next(model.parameters()).dtype)
    for plan in plans:
        token_loss(model, [sequences[i] for i in plan], weights[list(plan)], device).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).cpu()


def test_micro_batches_on_the_gpu_give_the_gradient_of_single_sequences_on_the_cpu(cuda: torch.device) -> None:
    torch.manual_seed(0)
    model = CausalModel().double()
    sequences = episodes(64)
    plans = cut([len(s) for s in sequences], budget=512)
    assert len(plans) > 4
    assert sorted(i for plan in plans for i in plan) == list(range(64))
    packed = gradient(model, plans, sequences, cuda)
    single = gradient(model, [[i] for i in range(64)], sequences, torch.device("cpu"))
    assert single.abs().max() > 1e-3
    torch.testing.assert_close(packed, single, rtol=1e-9, atol=1e-12)


def test_sorted_micro_batches_compute_fewer_tokens_than_one_padded_batch(cuda: torch.device) -> None:
    torch.manual_seed(0)
    model = CausalModel(width=512, layers=6).to(cuda)
    sequences = episodes(2048)
    lengths = [len(s) for s in sequences]
    plans = cut(lengths, budget=16_384)
    packed = sum(padded_tokens(plan, lengths) for plan in plans)
    assert packed < 0.5 * len(lengths) * max(lengths)
    assert packed < 1.1 * sum(lengths)
    seconds: list[float] = []
    for grouping in (plans, [range(2048)], plans):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        gradient(model, grouping, sequences, cuda)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    assert seconds[2] < 10, f"first {seconds[0]:.2f} s, one batch {seconds[1]:.2f} s, again {seconds[2]:.2f} s"
