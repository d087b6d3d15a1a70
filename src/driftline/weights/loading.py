# pyright: basic
"""How little of a changed version a running vLLM model must load.

vLLM's CPU kernels repack the weights of linear layers and keep no copy in the checkpoint's order, and it fuses
several of the checkpoint's tensors into one layer (q, k and v; gate and up). So:

- Of an embedding or a norm, which stay as they were loaded, the changed elements are set in place.
- Everything else is rebuilt from whole tensors, decoder layer by decoder layer: where one tensor of a layer
  changed, all tensors of that layer are loaded, because vLLM would fill the rest of a fused weight with garbage.
- Layers that did not change are left alone.

Knows modules only by their shape, and imports no vLLM.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from driftline.weights.checkpoint import Shapes
from driftline.weights.delta import Indices

EMBEDDING = "VocabParallelEmbedding"
"""Name of vLLM's embedding. Its output head, a subclass, keeps a repacked copy besides, and is none."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What of a version to load."""

    in_place: Mapping[str, Indices]
    """Tensor -> flat indices of the elements to set."""
    whole: tuple[str, ...]
    """Tensors that the model's own loader gets."""


def plan_load(changed: Mapping[str, Indices | None], names: Collection[str], in_place: Collection[str]) -> LoadPlan:
    """Decide how a version's changed tensors get into the model.

    Args:
        changed: Tensor -> flat indices of its changed elements, None where all of it may have.
        names: All tensors of the model.
        in_place: Those whose elements may be set one by one.
    """
    elements = {name: indices for name, indices in changed.items() if indices is not None and name in in_place}
    layers = {layer_of(name) for name in changed if name not in elements}
    whole = tuple(name for name in names if layer_of(name) in layers)
    return LoadPlan({name: indices for name, indices in elements.items() if name not in whole}, whole)


def layer_of(name: str) -> str:
    """What must be loaded together with a tensor: its decoder layer, or else its module."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1])


def in_place_parameters(model: nn.Module, shapes: Shapes) -> dict[str, Tensor]:
    """Parameters of a loaded model that are in the checkpoint's order, by checkpoint name.

    An embedding may have more rows than the checkpoint: the vocabulary is padded at its end.
    """
    modules = dict(model.named_modules())
    found: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        owner, _, leaf = name.rpartition(".")
        module = modules.get(owner)
        parameter = module._parameters.get(leaf) if module is not None else None
        if module is None or parameter is None or not _is_plain(module) or not parameter.is_contiguous():
            continue
        if tuple(parameter.shape[1:]) == tuple(shape[1:]) and parameter.shape[0] >= shape[0]:
            found[name] = parameter.data
    return found


def set_in_place(parameter: Tensor, value: Tensor, indices: Indices) -> None:
    """Set some elements of a model's parameter, by the flat indices of the checkpoint's tensor, in its dtype."""
    where = torch.from_numpy(indices)
    values = value.reshape(-1)[where].to(device=parameter.device, dtype=parameter.dtype)
    parameter.view(-1)[where.to(parameter.device)] = values


def _is_plain(module: nn.Module) -> bool:
    name = type(module).__name__
    return name == EMBEDDING or (name.endswith("Norm") and getattr(module, "quant_method", None) is None)
