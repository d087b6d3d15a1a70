# pyright: basic
"""Weights as they are published, in the module; weights in full precision, in the optimizer.

A trainer in float32 whose weights are published in bfloat16 must score with what the engines hold, or every ratio
would carry the rounding. So the module holds the rounded weights (as float32 values, computed with in float32), the
gradient is taken there, and the optimizer steps its own unrounded ones, as mixed-precision training does:

    round ──▶ forward, backward ──▶ [full precision: optimizer step] ──▶ round ──▶ publish, score, ...

Under ZeRO 1 and 2 the optimizer keeps fp32 partitions of its own already; under 0 and 3 it steps the module's
storage, of which a copy is kept here. A trainer in bfloat16 needs none of this: DeepSpeed does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

ROUNDED = torch.bfloat16


class RoundedModule:
    """Keeps an engine's trainable float32 weights rounded, but for when the optimizer needs its own."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._parameters = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
        self._own: list[Tensor] | None = None
        if engine.zero_optimization_stage() in (0, 3):
            self._own = [_storage(parameter).clone() for parameter in self._parameters]
        self._sums = self._fingerprint()
        self.moved = False
        """Whether the optimizer's own weights changed in the last `full_precision`, on this rank."""
        self._round()

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Within, the optimizer's weights are its own: to step, save, load or replace them."""
        if self._own is not None:
            for parameter, own in zip(self._parameters, self._own, strict=True):
                _storage(parameter).copy_(own)
        yield
        if self._own is not None:
            stored = [_storage(parameter) for parameter in self._parameters]
            self.moved = not all(map(torch.equal, stored, self._own))
            for own, value in zip(self._own, stored, strict=True):
                own.copy_(value)
        else:
            before, self._sums = self._sums, self._fingerprint()
            self.moved = before != self._sums
        self._round()

    def _round(self) -> None:
        for parameter in self._parameters:
            _round_in_place(_storage(parameter))
            if _is_whole_beside_its_partition(parameter):
                _round_in_place(parameter.data)

    def _fingerprint(self) -> list[int]:
        """Under ZeRO 1 and 2: sums of the fp32 partitions' bits, which any change of an element changes."""
        if self._own is not None:
            return []
        partitions = [partition.detach() for partition in self._engine.optimizer.single_partition_of_fp32_groups]
        return [int(flat[: flat.numel() // 2 * 2].view(torch.int64).sum()) for flat in partitions]


def _storage(parameter: nn.Parameter) -> Tensor:
    """What the optimizer steps: the parameter, or under ZeRO 3 this rank's partition of it."""
    return getattr(parameter, "ds_tensor", parameter).data


def _is_whole_beside_its_partition(parameter: nn.Parameter) -> bool:
    """ZeRO 3 keeps small parameters whole between steps, next to their partition."""
    return hasattr(parameter, "ds_tensor") and parameter.data.numel() == getattr(parameter, "ds_numel", 0)


def _round_in_place(tensor: Tensor) -> None:
    tensor.copy_(tensor.to(ROUNDED))
