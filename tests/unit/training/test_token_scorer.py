"""The policy module against transformers' own forward pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from driftline.errors import ConfigurationError
from driftline.training.model import TokenScorer, open_model, pad
from tests.support.training import VOCABULARY, tiny_model


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), tied=request.param)


def sequences() -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in (3, 11, 6)]
    sampled = [torch.rand(len(row), generator=generator) < 0.6 for row in ids]
    for row in sampled:
        row[0], row[-1] = False, True
    return ids, sampled


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_whole_distribution(model_dir: Path, temperature: float):
    """trl#4159: the temperature is applied as in sampling. Padding on the right changes nothing."""
    model = open_model(model_dir, torch.float32)
    ids, sampled = sequences()
    batch = pad(ids, sampled)
    with torch.no_grad():
        found, entropy = TokenScorer(model)(batch.ids_BT, batch.rows_N, batch.columns_N, temperature)
    expected: list[float] = []
    entropies: list[float] = []
    for row, mask in zip(ids, sampled, strict=True):
        with torch.no_grad():
            logprobs = (model(input_ids=row[None]).logits[0].double() / temperature).log_softmax(-1)
        for column in mask.nonzero().flatten().tolist():
            expected.append(float(logprobs[column - 1, row[column]]))
            entropies.append(float(-(logprobs[column - 1].exp() * logprobs[column - 1]).sum()))
    assert found.tolist() == pytest.approx(expected, abs=2e-5)
    assert entropy.tolist() == pytest.approx(entropies, abs=2e-5)


def test_a_rank_without_work_gets_a_dummy():
    batch = pad([], [])
    assert batch.ids_BT.shape == (1, 2)
    assert (batch.rows_N.tolist(), batch.columns_N.tolist()) == ([0], [1])


def test_dropout_is_off(model_dir: Path, tmp_path: Path):
    configuration = json.loads((model_dir / "config.json").read_text()) | {"attention_dropout": 0.5}
    for path in model_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    assert open_model(tmp_path, torch.float32).config.attention_dropout == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "no-such-model"}, "no language model that transformers loads"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)
def test_what_is_no_model_is_refused(model_dir: Path, tmp_path: Path, change: dict[str, object], message: str):
    for path in model_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    configuration = json.loads((model_dir / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    with pytest.raises(ConfigurationError, match=message):
        open_model(tmp_path, torch.float32)
