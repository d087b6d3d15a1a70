# pyright: basic
"""Whole tensors out of a DeepSpeed engine, and back in, whatever its ZeRO stage.

Collective: every rank calls these, exhausts what they yield, and so enters and leaves each gather together. Under
ZeRO 3 a partitioned parameter has no elements (`numel()` is 0, its size is `ds_numel`), so buckets are bounded by
`ds_numel`, and one bucket is whole at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_set_full_fp32_param
from torch import Tensor, nn

BUCKET_ELEMENTS = 64 * 2**20
WRAPPER_PREFIX = "model."
"""`TokenScorer` holds the model under this name; checkpoints do not know it."""
ADAPTER_NAME = ".default."
"""PEFT's name for the one adapter, within the names of its tensors."""


def checkpoint_name(name: str) -> str:
    """The name of an engine's parameter in the model's Hugging Face checkpoint."""
    return name.removeprefix(WRAPPER_PREFIX).replace(ADAPTER_NAME, ".")


def full_tensors(engine: Any, bucket_elements: int = BUCKET_ELEMENTS) -> Iterator[tuple[str, Tensor]]:
    """Yield (checkpoint name, whole tensor) of every trained parameter, once, in a fixed order, on every rank.

    The tensor is valid until the next one is asked for. A consumer that needs it on one rank alone passes over it
    on the others, but exhausts the iterator.
    """
    for bucket in _buckets(engine.module, bucket_elements):
        with _whole(engine, [parameter for _, parameter in bucket]):
            for name, parameter in bucket:
                yield checkpoint_name(name), parameter.detach()


def replace_weights(engine: Any, tensors: Mapping[str, Tensor], bucket_elements: int = BUCKET_ELEMENTS) -> None:
    """Set every trained parameter, and the optimizer's fp32 copy of it, to rank 0's tensors.

    Args:
        engine: The DeepSpeed engine.
        tensors: Checkpoint name -> tensor on rank 0; not read on the others.
        bucket_elements: Elements that are whole at a time.
    """
    plain = not hasattr(engine.optimizer, "param_groups") or not _has_master_copy(engine)
    for bucket in _buckets(engine.module, bucket_elements):
        values = [_from_rank_0(engine, tensors, name, parameter) for name, parameter in bucket]
        if not plain:
            for (_, parameter), value in zip(bucket, values, strict=True):
                safe_set_full_fp32_param(parameter, value.float())
        with _whole(engine, [parameter for _, parameter in bucket], modifier_rank=0), torch.no_grad():
            for (_, parameter), value in zip(bucket, values, strict=True):
                parameter.data.copy_(value)


def _has_master_copy(engine: Any) -> bool:
    """Whether the optimizer steps other tensors than the module's parameters."""
    return engine.zero_optimization_stage() > 0 or engine.bfloat16_enabled()


def _from_rank_0(engine: Any, tensors: Mapping[str, Tensor], name: str, parameter: nn.Parameter) -> Tensor:
    shape = getattr(parameter, "ds_shape", parameter.shape)
    value = torch.empty(shape, dtype=torch.float32, device=engine.device)
    if dist.get_rank() == 0:
        value.copy_(tensors[checkpoint_name(name)])
    if dist.get_world_size() > 1:
        dist.broadcast(value, src=0)
    return value


def _buckets(module: nn.Module, bucket_elements: int) -> Iterator[list[tuple[str, nn.Parameter]]]:
    bucket: list[tuple[str, nn.Parameter]] = []
    elements = 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        size = int(getattr(parameter, "ds_numel", parameter.numel()))
        if bucket and elements + size > bucket_elements:
            yield bucket
            bucket, elements = [], 0
        bucket.append((name, parameter))
        elements += size
    if bucket:
        yield bucket


def _whole(engine: Any, parameters: list[nn.Parameter], modifier_rank: int | None = None) -> Any:
    if engine.zero_optimization_stage() < 3:
        return nullcontext()
    return deepspeed.zero.GatheredParameters(parameters, modifier_rank=modifier_rank)
