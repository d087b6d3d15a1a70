"""Base policies: trained on demonstrations, taken from a directory, taken from a package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from driftline.engine.tokens import open_renderer
from driftline.environment import Message
from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.store import files
from driftline.store.memory import MemoryStore
from driftline.training import warm_start
from driftline.training.base_model import BaseModelSpec
from driftline.training.demonstrations import record_demonstrations
from environments import FAMILIES
from tests.support.rollout import RENDERER, OddFamily
from tests.support.training import tiny_model

FAMILY = FAMILIES["pointer_chase/v1"]


def spec(seed: int = 0, **model: object) -> BaseModelSpec:
    small = {"hidden_size": 32, "layers": 2, "heads": 2, "warm_start_steps": 40, "warm_start_batch": 16} | model
    return BaseModelSpec.of(RunParameters.model_validate({"seed": seed, "model": small}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A model directory, and the loss of each step."""
    losses: list[float] = []
    directory = tmp_path_factory.mktemp("warm")
    warm_start.make_warm_start(spec(), directory, lambda step, loss: losses.append(loss))
    return directory, losses


def test_it_learns_what_the_demonstrators_do(made: tuple[Path, list[float]]):
    _, losses = made
    assert len(losses) == 40
    assert losses[0] > 3.0, "a guess among 43 characters costs ln 43 = 3.8 nats"
    assert sum(losses[-5:]) / 5 < 2.5


def test_transformers_loads_it_as_it_is(made: tuple[Path, list[float]]):
    directory, _ = made
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert model.config.vocab_size == len(tokenizer) == 43
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", "<eos>")
    text = "?ab\n>ab\n=42\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tuple(ids) == open_renderer(directory, "plain", stop="\n").start([Message("user", text)])
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([ids])).logits).all()


def test_the_same_seed_gives_the_same_weights(made: tuple[Path, list[float]], tmp_path: Path):
    warm_start.make_warm_start(spec(), tmp_path / "again")
    warm_start.make_warm_start(spec(seed=1, warm_start_steps=1), tmp_path / "other")
    digest = files.file_digest(made[0] / "model.safetensors")
    assert files.file_digest(tmp_path / "again" / "model.safetensors") == digest
    assert files.file_digest(tmp_path / "other" / "model.safetensors") != digest


def test_only_the_actions_are_imitated():
    (episode, *_) = record_demonstrations(FAMILY, RENDERER, seed=3, count=5, max_turns=20, max_tokens=256)
    said = RENDERER.text([i for i, own in zip(episode.token_ids, episode.action_mask, strict=True) if own])
    heard = RENDERER.text([i for i, own in zip(episode.token_ids, episode.action_mask, strict=True) if not own])
    assert said[0] in ">="
    assert said.rstrip("\n").split("\n")[-1].startswith("=")
    assert heard.startswith("?")
    assert not any(line.startswith(">") for line in heard.splitlines())


def test_demonstrations_are_a_function_of_the_seed():
    def record(seed: int):
        return record_demonstrations(FAMILY, RENDERER, seed=seed, count=20, max_turns=20, max_tokens=256)

    assert record(1) == record(1)
    assert record(1) != record(2)
    short = record_demonstrations(FAMILY, RENDERER, seed=1, count=20, max_turns=20, max_tokens=16)
    assert 0 < len(short) < 20
    assert all(len(episode.token_ids) <= 16 for episode in short)


def test_a_family_without_demonstrations_is_refused():
    family = OddFamily()
    with pytest.raises(ConfigurationError, match="no demonstrations for a warm start"):
        record_demonstrations(family, RENDERER, seed=0, count=1, max_turns=2, max_tokens=64)


def test_it_is_made_once(monkeypatch: pytest.MonkeyPatch):
    store = MemoryStore()
    source = warm_start.make(spec(warm_start_steps=1), store)
    names = {entry.key.removeprefix(source.prefix) for entry in source.files}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    monkeypatch.setattr(warm_start, "make_warm_start", None)
    assert warm_start.make(spec(warm_start_steps=1), store) == source


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_directory_is_taken_over(tmp_path: Path, tied: bool):
    directory = tiny_model(tmp_path / "mine", tied=tied)
    (directory / "optimizer.pt").write_bytes(b"not part of the model")
    store = MemoryStore()
    params = RunParameters.model_validate({"model": {"source": "directory", "directory": str(directory)}})
    source = warm_start.make(BaseModelSpec.of(params), store)
    assert source.tied_embeddings == tied
    files.download(store, source.files, source.prefix, tmp_path / "there")
    copied = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    assert copied["model.safetensors"] == (directory / "model.safetensors").read_bytes()
    assert "optimizer.pt" not in copied


def test_a_directory_whose_weights_do_not_load_is_refused(tmp_path: Path):
    directory = tiny_model(tmp_path / "mine")
    configuration = json.loads((directory / "config.json").read_text()) | {"model_type": "nothing-known"}
    (directory / "config.json").write_text(json.dumps(configuration))
    params = RunParameters.model_validate({"model": {"source": "directory", "directory": str(directory)}})
    with pytest.raises(ConfigurationError, match="no language model that transformers loads"):
        warm_start.make(BaseModelSpec.of(params), MemoryStore())


@pytest.mark.slow
def test_smollm2_comes_out_of_its_package(tmp_path: Path):
    store = MemoryStore()
    params = RunParameters.model_validate({"model": {"source": "smollm2", "rendering": "chat"}})
    source = warm_start.make(BaseModelSpec.of(params), store)
    assert source.tied_embeddings
    files.download(store, source.files, source.prefix, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer("1234", add_special_tokens=False)["input_ids"]) == 4, "each digit is a token"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>assistant\n")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)  # pyright: ignore
    assert "Paris" in tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])
