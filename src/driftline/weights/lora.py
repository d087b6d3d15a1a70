# pyright: basic
"""Low-rank adapters on the reader's side: folded into the base model's weights, the same everywhere.

`W + alpha / rank * B @ A` in float32, as a sum over the rank in a fixed order of separate multiplications and
additions: no matrix kernel decides the order of the sum, so the same adapter gives the same bits on any machine.
Names are those of the base: adapters of `X.weight` are `X.lora_A.weight` `[rank, in]` and `X.lora_B.weight`
`[out, rank]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from driftline.errors import CorruptObject
from driftline.records import AdapterLayout, WeightsManifest
from driftline.weights.checkpoint import Shapes, weight_files

DOWN, UP, WEIGHT = ".lora_A.weight", ".lora_B.weight", ".weight"


def adapted(name: str) -> str:
    """The weight that an adapter's tensor belongs to.

    Raises:
        CorruptObject: It is no adapter's tensor.
    """
    for suffix in (DOWN, UP):
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix)}{WEIGHT}"
    raise CorruptObject(f"{name!r} is no adapter: it ends neither with {DOWN!r} nor with {UP!r}")


def check_adapters(tensors: Mapping[str, Tensor], shapes: Shapes, manifest: WeightsManifest) -> None:
    """Compare a version's adapters with the base model that is to hold them.

    Raises:
        CorruptObject: One belongs to no weight of the model, lacks its other half, or has another shape.
    """
    assert manifest.adapter is not None
    rank = manifest.adapter.rank
    for target in sorted(targets(tensors)):
        where = f"the adapter of {target!r} in version {manifest.version}"
        if target not in shapes:
            raise CorruptObject(f"{where} has no weight in the base model: the run's base and the engine's differ")
        rows, columns = shapes[target]
        stem = target.removesuffix(WEIGHT)
        for name, wanted in ((f"{stem}{DOWN}", (rank, columns)), (f"{stem}{UP}", (rows, rank))):
            found = tuple(tensors[name].shape) if name in tensors else None
            if found != wanted:
                raise CorruptObject(f"{where}: {name!r} has shape {found}, the base model wants {wanted}")


def targets(names: Iterable[str]) -> set[str]:
    """The weights that adapters change."""
    return {adapted(name) for name in names}


def merge(base: Tensor, down: Tensor, up: Tensor, layout: AdapterLayout) -> Tensor:
    """A weight with its adapter folded in, in float32.

    Args:
        base: `[out, in]`.
        down: `A`, `[rank, in]`.
        up: `B`, `[out, rank]`.
        layout: Rank and scale.
    """
    down, up = down.float(), up.float()
    product = torch.zeros(base.shape, dtype=torch.float32)
    for index in range(layout.rank):
        product += up[:, index, None] * down[None, index]
    return base.float() + product * (layout.alpha / layout.rank)


class BaseModel:
    """The tensors of a model directory, read one at a time from its files."""

    def __init__(self, directory: Path) -> None:
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        for path in weight_files(directory):
            file = self._open.enter_context(safe_open(path, "pt"))
            self._files |= dict.fromkeys(file.keys(), file)

    def tensor(self, name: str) -> Tensor:
        """One tensor, as the directory has it."""
        return self._files[name].get_tensor(name)

    def with_adapters(self, name: str, adapters: Mapping[str, Tensor], layout: AdapterLayout) -> Tensor:
        """One weight, with its adapter folded in where it has one."""
        stem = name.removesuffix(WEIGHT)
        down, up = adapters.get(f"{stem}{DOWN}"), adapters.get(f"{stem}{UP}")
        if down is None or up is None:
            return self.tensor(name)
        return merge(self.tensor(name), down, up, layout)

    def close(self) -> None:
        """Close the files."""
        self._open.close()
