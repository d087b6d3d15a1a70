"""What a running model loads of a changed version: no more than it must, and never a layer in part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from driftline.weights.loading import in_place_parameters, layer_of, plan_load, set_in_place

NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.10.self_attn.q_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
)
LAYER_0, EMBED = NAMES[1:4], NAMES[0]
ONE = np.array([3])


@pytest.mark.parametrize(
    ("changed", "in_place", "elements", "whole"),
    [
        ({}, (), (), ()),
        ({EMBED: ONE}, (EMBED,), (EMBED,), ()),
        ({EMBED: ONE}, (), (), (EMBED,)),
        ({EMBED: None}, (EMBED,), (), (EMBED,)),
        ({NAMES[1]: ONE}, (EMBED,), (), LAYER_0),
        ({NAMES[3]: ONE}, (NAMES[3],), (NAMES[3],), ()),
        ({NAMES[1]: ONE, NAMES[3]: ONE}, (NAMES[3],), (), LAYER_0),
        ({NAMES[4]: ONE, "lm_head.weight": None}, (), (), (NAMES[4], "lm_head.weight")),
        (dict.fromkeys(NAMES), (EMBED, "model.norm.weight"), (), NAMES),
    ],
)
def test_what_is_set_in_place_and_what_is_loaded_whole(
    changed: dict[str, np.ndarray | None],
    in_place: tuple[str, ...],
    elements: tuple[str, ...],
    whole: tuple[str, ...],
) -> None:
    plan = plan_load(changed, NAMES, in_place)
    assert (tuple(plan.in_place), plan.whole) == (elements, whole)


def test_a_layer_is_its_outermost_number_or_its_module() -> None:
    assert layer_of("model.layers.3.mlp.experts.7.w1.weight") == "model.layers.3"
    assert layer_of("model.layers.10.self_attn.q_proj.bias") == "model.layers.10"
    assert layer_of("model.norm.weight") == "model.norm"
    assert layer_of("lm_head.weight") == layer_of("lm_head.bias") == "lm_head"


class VocabParallelEmbedding(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))


class ParallelLMHead(VocabParallelEmbedding):
    pass


class RMSNorm(VocabParallelEmbedding):
    def __init__(self, size: int) -> None:
        super().__init__(1, size)
        self.weight = nn.Parameter(torch.zeros(size))


class Linear(VocabParallelEmbedding):
    pass


def test_only_parameters_in_the_checkpoints_order_are_set_in_place() -> None:
    model = nn.Module()
    model.embed = VocabParallelEmbedding(64, 3)
    model.narrow = VocabParallelEmbedding(5, 2)
    model.norm = RMSNorm(3)
    model.linear = Linear(4, 3)
    model.head = ParallelLMHead(64, 3)
    shapes = {"embed.weight": (43, 3), "narrow.weight": (5, 3), "norm.weight": (3,), "linear.weight": (4, 3)}
    found = in_place_parameters(model, {**shapes, "head.weight": (43, 3), "gone.weight": (1,)})
    assert set(found) == {"embed.weight", "norm.weight"}
    assert found["embed.weight"].data_ptr() == model.embed.weight.data_ptr()


def test_elements_are_set_in_the_models_dtype_and_nothing_else() -> None:
    parameter, value = torch.zeros(6, 4), torch.arange(20.0).reshape(5, 4).bfloat16()
    set_in_place(parameter, value, np.array([0, 5, 19]))
    assert parameter.flatten().nonzero().flatten().tolist() == [5, 19]
    assert (parameter[1, 1], parameter[4, 3]) == (5.0, 19.0)
