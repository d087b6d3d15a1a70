"""Adapters on the trainer's side: where they go, what they start from, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from driftline.errors import ConfigurationError
from driftline.params import LoraParameters
from driftline.training.gather import checkpoint_name
from driftline.training.model import TokenScorer, add_adapters, open_model
from driftline.weights.lora import targets
from tests.support.tiny_llama import save, tiny_llama


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_llama(0), tmp_path_factory.mktemp("model"))


def adapted(model_dir: Path, seed: int = 0, **lora: Any) -> TokenScorer:
    model = open_model(model_dir, torch.float32)
    add_adapters(model, LoraParameters(**{"rank": 2, "targets": ("q_proj", "o_proj"), **lora}), seed)
    return TokenScorer(model)


def trained(scorer: TokenScorer) -> dict[str, torch.Tensor]:
    return {checkpoint_name(name): p.detach() for name, p in scorer.named_parameters() if p.requires_grad}


def test_only_adapters_are_trained_under_the_names_of_their_weights(model_dir: Path) -> None:
    scorer = adapted(model_dir)
    found = targets(trained(scorer))
    parts = ("q_proj", "o_proj")
    assert found == {f"model.layers.{n}.self_attn.{part}.weight" for n in range(3) for part in parts}
    assert {p.shape for name, p in trained(scorer).items() if name.endswith("lora_A.weight")} == {(2, 128)}


def test_the_seed_gives_the_adapters_and_at_first_they_change_nothing(model_dir: Path) -> None:
    state = torch.random.get_rng_state()
    first, again, other = adapted(model_dir), adapted(model_dir), adapted(model_dir, seed=1)
    assert torch.equal(state, torch.random.get_rng_state()), "nobody else's draws are moved"
    name = "model.layers.0.self_attn.q_proj.lora_A.weight"
    assert torch.equal(trained(first)[name], trained(again)[name])
    assert not torch.equal(trained(first)[name], trained(other)[name])
    ids_BT, columns_N = torch.tensor([[5, 6, 7, 8]]), torch.arange(1, 4)
    plain = TokenScorer(open_model(model_dir, torch.float32))
    scores = [scorer(ids_BT, torch.zeros_like(columns_N), columns_N)[0].detach() for scorer in (first, plain)]
    assert torch.equal(*scores)


@pytest.mark.parametrize(
    ("target", "said"),
    [("lm_head", "'lm_head' is an embedding or the output head"), ("no_such", r"lora\.targets: .*no_such")],
)
def test_layers_that_take_no_adapter_are_refused(model_dir: Path, target: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        adapted(model_dir, targets=(target,))
