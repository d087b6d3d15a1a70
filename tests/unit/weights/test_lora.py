"""Adapters on the reader's side: folded in exactly, the same everywhere, and refused where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from driftline.errors import CorruptObject
from driftline.records import AdapterLayout, PolicyVersion, Probe, WeightsManifest
from driftline.weights.lora import BaseModel, adapted, check_adapters, merge, targets

LAYOUT = AdapterLayout(rank=2, alpha=6.0, base="b")
MANIFEST = WeightsManifest(
    "r", PolicyVersion(1, 1), "anchor", None, (), {}, "float32", Probe((), ()), 0.0, adapter=LAYOUT
)
SHAPES = {"m.q.weight": (3, 4), "m.k.weight": (3, 4)}


def adapters(stem: str = "m.q") -> dict[str, Tensor]:
    return {
        f"{stem}.lora_A.weight": torch.tensor([[1.0, 0, 0, 0], [0, 2, 0, 0]]),
        f"{stem}.lora_B.weight": torch.tensor([[1.0, 0], [0, 1], [1, 1]]),
    }


def test_a_weight_with_its_adapter_by_hand() -> None:
    base = torch.ones(3, 4)
    down, up = adapters().values()
    wanted = [[1 + 3, 1, 1, 1], [1, 1 + 6, 1, 1], [1 + 3, 1 + 6, 1, 1]]
    assert merge(base, down, up, LAYOUT).tolist() == wanted


def test_the_sum_over_the_rank_has_a_fixed_order_of_single_operations() -> None:
    """The bits do not depend on a matrix kernel: they are those of float32 additions, one after the other."""
    generator = torch.Generator().manual_seed(0)
    layout = AdapterLayout(rank=7, alpha=5.0, base="b")
    base, down, up = (torch.randn(*shape, generator=generator) for shape in ((5, 6), (7, 6), (5, 7)))
    found = merge(base, down, up, layout)
    for row in range(5):
        for column in range(6):
            total = torch.tensor(0.0)
            for k in range(7):
                total = total + up[row, k] * down[k, column]
            assert found[row, column] == base[row, column] + total * (5.0 / 7)
    assert torch.allclose(found, base + 5 / 7 * up @ down, atol=1e-5)


def test_a_bfloat16_base_is_not_rounded_again() -> None:
    base = torch.full((3, 4), 1.0, dtype=torch.bfloat16)
    tiny = {name: tensor * 1e-2 for name, tensor in adapters().items()}
    assert merge(base, tiny["m.q.lora_A.weight"], tiny["m.q.lora_B.weight"], LAYOUT)[0, 0] == pytest.approx(
        1.0003, abs=1e-6
    )


def test_the_weight_that_an_adapter_belongs_to() -> None:
    assert adapted("m.q.lora_A.weight") == adapted("m.q.lora_B.weight") == "m.q.weight"
    assert targets([*adapters("m.q"), *adapters("m.k")]) == {"m.q.weight", "m.k.weight"}
    with pytest.raises(CorruptObject, match=r"'m\.q\.weight' is no adapter"):
        adapted("m.q.weight")


def test_adapters_must_fit_the_base() -> None:
    check_adapters(adapters(), SHAPES, MANIFEST)
    with pytest.raises(CorruptObject, match="in version 000001-0001 has no weight in the base"):
        check_adapters(adapters("m.v"), SHAPES, MANIFEST)
    with pytest.raises(CorruptObject, match=r"'m.q.lora_A.weight' has shape \(2, 4\), the base model wants \(2, 9\)"):
        check_adapters(adapters(), {"m.q.weight": (3, 9)}, MANIFEST)
    with pytest.raises(CorruptObject, match=r"wants \(4, 4\)"):
        check_adapters(adapters(), SHAPES, replace(MANIFEST, adapter=replace(LAYOUT, rank=4)))
    half = {"m.q.lora_A.weight": adapters()["m.q.lora_A.weight"]}
    with pytest.raises(CorruptObject, match=r"'m.q.lora_B.weight' has shape None"):
        check_adapters(half, SHAPES, MANIFEST)


def test_a_base_model_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    weights = {name: torch.ones(3, 4) for name in SHAPES}
    save_file(weights, tmp_path / "model.safetensors")
    base = BaseModel(tmp_path)
    assert torch.equal(base.tensor("m.k.weight"), torch.ones(3, 4))
    assert torch.equal(base.with_adapters("m.k.weight", adapters(), LAYOUT), torch.ones(3, 4))
    down, up = adapters().values()
    wanted = merge(torch.ones(3, 4), down, up, LAYOUT)
    assert torch.equal(base.with_adapters("m.q.weight", adapters(), LAYOUT), wanted)
    base.close()
