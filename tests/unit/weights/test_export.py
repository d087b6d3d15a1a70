"""The exported directory is what transformers loads, with the published weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from driftline.errors import ConfigurationError, CorruptObject
from driftline.records import AdapterLayout, Head, ModelSource, PolicyVersion, RunDescription
from driftline.store.files import download, upload_directory
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.weights.export import export_run
from driftline.weights.publisher import WeightsPublisher
from tests.support.tiny_llama import probe_of, publish, reference_logprobs, save, tiny_llama
from tests.support.weight_chain import random_adapters, with_adapters

IDS = (5, 6, 7, 8, 9, 10)


def run_with_base(base: object, tmp_path: Path, *, tied: bool) -> RunStore:
    store = MemoryStore()
    directory = save(base, tmp_path / "base")
    (directory / "tokenizer.json").write_text("{}")
    (directory / "README.md").write_text("the base model's card")
    files = upload_directory(store, "models/x/", directory)
    model = ModelSource("x", "models/x/", files, tied)
    run_store = RunStore(store, "r")
    run_store.create(RunDescription("r", 0.0, {}, "code", model, "tasks", "held-out", None))
    return run_store


def head(version: PolicyVersion | None) -> Head:
    return Head(1, 1, version, None, 0, (), 0, ())


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_it_with_the_published_weights(tmp_path: Path, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    policy = tiny_llama(2, tied=tied)
    run_store = run_with_base(tiny_llama(1, tied=tied), tmp_path, tied=tied)
    manifest = publish(policy, run_store, 4)
    run_store.create_head(head(manifest.version))
    exported, files = export_run(run_store, card="the policy's card")
    assert exported == manifest
    assert all(file.key.startswith("runs/r/model/") for file in files)
    download(run_store.store, files, "runs/r/model/", tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text() == "the policy's card"
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert loaded.dtype == torch.float32
    assert reference_logprobs(loaded, IDS) == reference_logprobs(policy, IDS)


def test_bfloat16_weights_are_loaded_as_such(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run_store = run_with_base(tiny_llama(1), tmp_path, tied=False)
    policy = tiny_llama(2)
    run_store.create_head(head(publish(policy, run_store, 4, dtype="bfloat16").version))
    _, files = export_run(run_store)
    download(run_store.store, files, "runs/r/model/", tmp_path / "out")
    assert not (tmp_path / "out" / "README.md").exists(), "the base model's card does not describe the policy"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.lm_head.weight, policy.lm_head.weight.bfloat16())


def test_a_run_without_a_version_says_so(tmp_path: Path) -> None:
    run_store = run_with_base(tiny_llama(1), tmp_path, tied=False)
    run_store.create_head(head(None))
    with pytest.raises(ConfigurationError, match="no version yet"):
        export_run(run_store)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    run_store = run_with_base(tiny_llama(1, tied=True), tmp_path, tied=True)
    run_store.create_head(head(publish(tiny_llama(2, tied=False), run_store, 1).version))
    with pytest.raises(CorruptObject, match=r"have \['lm_head.weight'\] besides"):
        export_run(run_store)


def test_adapters_are_exported_folded_into_the_base(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = tiny_llama(1)
    run_store = run_with_base(base, tmp_path, tied=False)
    layout = AdapterLayout(rank=2, alpha=4.0, base="x")
    adapters = random_adapters(base, ("q_proj", "up_proj"), layout, seed=3)
    policy = with_adapters(base, adapters, layout)
    publisher = WeightsPublisher(run_store, dtype="bfloat16", adapter=layout)
    version = PolicyVersion(4, 1)
    publisher.publish(adapters.items(), version=version, probe=probe_of(policy), previous=None, expect_change=False)
    run_store.create_head(head(version))
    exported, files = export_run(run_store)
    assert set(exported.tensors) == set(adapters)
    download(run_store.store, files, "runs/r/model/", tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    rounded = {name: tensor.bfloat16() for name, tensor in adapters.items()}
    assert loaded.dtype == torch.float32, "the base's dtype, whatever the adapters travel in"
    assert reference_logprobs(loaded, IDS) == reference_logprobs(with_adapters(base, rounded, layout), IDS)
