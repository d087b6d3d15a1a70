# pyright: basic
"""Tensors as bytes: digests, dtypes, and the names that a tied model must not carry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from driftline.records import WeightsManifest
from driftline.weights.checkpoint import OUTPUT_HEAD

DtypeName = Literal["float32", "bfloat16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """The assembled host tensors of one version, in the published dtype: what the next delta is about."""

    manifest: WeightsManifest
    tensors: dict[str, Tensor]


def host_tensor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor on the host, contiguous, detached; floating-point values in `dtype`. Copies only what it must."""
    target = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(device="cpu", dtype=target).contiguous()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, in the machine's (little-endian) order, without a copy."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes, wherever it lies, in hexadecimal digits."""
    return hashlib.sha256(tensor_bytes(tensor.detach().cpu().contiguous())).hexdigest()


def without_tied_head(named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """All tensors but the output head, which a model with tied embeddings takes from its embeddings."""
    return ((name, tensor) for name, tensor in named_tensors if name != OUTPUT_HEAD)
