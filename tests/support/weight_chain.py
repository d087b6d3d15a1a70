"""Versions that differ by a few elements, published as chains; and adapters: for tests of engines."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from driftline.records import AdapterLayout, PolicyVersion, WeightsManifest
from driftline.store.run_store import RunStore
from driftline.weights.lora import DOWN, UP, merge
from driftline.weights.publisher import WeightsPublisher
from tests.support.tiny_llama import probe_of

STEP = 1 + 2**-6
"""What a changed element is multiplied by: one or two bfloat16 steps."""


@dataclass
class WeightChain:
    """A model whose published form is bfloat16, and its versions so far, by number."""

    model: Any
    run_store: RunStore
    first: int
    models: dict[int, Any] = field(default_factory=dict)
    manifests: dict[int, WeightsManifest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._publisher = WeightsPublisher(
            self.run_store,
            dtype="bfloat16",
            tied_embeddings=self.model.config.tie_word_embeddings,
            chain_factor=50.0,
        )
        self.next_version()

    def step(self, share: float = 0.02, only: str = "") -> WeightsManifest:
        """Change a share of the elements, of tensors whose name contains `only`, and publish."""
        generator = torch.Generator().manual_seed(len(self.models))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if only in name:
                    mask = torch.rand(parameter.shape, generator=generator) < share
                    parameter[mask] *= STEP
        return self.next_version()

    def next_version(self) -> WeightsManifest:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(parameter.bfloat16())
        number = self.first + len(self.models)
        self.models[number] = copy.deepcopy(self.model)
        self.manifests[number] = self._publisher.publish(
            self.model.named_parameters(),
            version=PolicyVersion(number, 1),
            probe=probe_of(self.model),
            previous=self.manifests.get(number - 1),
            expect_change=number > self.first,
        )
        return self.manifests[number]


def random_adapters(base: Any, targets: tuple[str, ...], layout: AdapterLayout, seed: int) -> dict[str, torch.Tensor]:
    """Adapters of every layer whose name ends with one of the targets."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for name, weight in base.named_parameters():
        stem = name.removesuffix(".weight")
        if stem.endswith(targets):
            rows, columns = weight.shape
            made[f"{stem}{DOWN}"] = 0.1 * torch.randn(layout.rank, columns, generator=generator)
            made[f"{stem}{UP}"] = 0.1 * torch.randn(rows, layout.rank, generator=generator)
    return made


def with_adapters(base: Any, adapters: dict[str, torch.Tensor], layout: AdapterLayout) -> Any:
    """A model with adapters folded in."""
    model = copy.deepcopy(base)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            stem = name.removesuffix(".weight")
            if f"{stem}{DOWN}" in adapters:
                weight.copy_(merge(weight, adapters[f"{stem}{DOWN}"], adapters[f"{stem}{UP}"], layout))
    return model
