"""Real DeepSpeed ranks against a plain loop in torch: the same steps, whatever the ranks and the ZeRO stage."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from driftline.records import AdapterLayout
from driftline.training.batch import TrainingBatch
from driftline.training.model import open_model
from driftline.weights.lora import targets
from tests.support.tiny_llama import reference_logprobs
from tests.support.training import sequences_of, tiny_model
from tests.support.training_ranks import SMALL_RATE, SPOILT, TEMPERATURE, batch, run_parameters
from tests.support.weight_chain import with_adapters

DEADLINE_S = 400
pytestmark = pytest.mark.timeout(900)
ONE_RANK = ["0", "null", "masked", "rounded0", "lora0"]
TWO_RANKS = ["0", "1", "2", "3", "bf16", "masked", "rounded1", "rounded3", "lora3", "broken1", "broken3"]
EXACT = [(1, "0"), (2, "0"), (2, "1"), (2, "2"), (2, "3")]
LORA_RUNS = [(1, "lora0"), (2, "lora3")]
ROUNDED = [(1, "rounded0"), (2, "rounded1"), (2, "rounded3")]


@dataclass(frozen=True)
class Seen:
    """What the driver saw."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def at(self, label: str) -> dict[str, Tensor]:
        return {n.removeprefix(f"{label}/"): t for n, t in self.tensors.items() if n.startswith(f"{label}/")}


def start(model: Path, out: Path, stages: list[str], ranks: int) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.support.training_ranks", str(model), str(out), ",".join(stages)]
    processes: list[subprocess.Popen[bytes]] = []
    for rank in range(ranks):
        env = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (out / f"rank-{rank}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    return processes


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def seen(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Seen]:
    found: dict[tuple[int, str], Seen] = {}
    for ranks, stages in ((1, ONE_RANK), (2, TWO_RANKS)):
        out = tmp_path_factory.mktemp(f"ranks-{ranks}")
        processes = start(model_dir, out, stages, ranks)
        try:
            for process in processes:
                code = process.wait(DEADLINE_S)
                assert code == 0, "\n".join(log.read_text()[-3000:] for log in sorted(out.glob("*.log")))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for stage in stages:
            facts = json.loads((out / f"{stage}.json").read_text())
            told = out / f"{stage}-rank-1.txt"
            facts["other_rank"] = told.read_text() if told.exists() else None
            found[ranks, stage] = Seen(load_file(out / f"{stage}.safetensors"), facts)
    return found


@dataclass
class PlainStep:
    loss: float
    gradient_norm: float
    tokens: int


def plain_loop(
    model_dir: Path, batches: list[TrainingBatch], *, rate: float = 1e-2, rounded: bool = False
) -> tuple[list[PlainStep], dict[str, Tensor]]:
    """One sequence after the other, all logits, torch's own AdamW: slow and obvious.

    With `rounded`, gradients are taken at the weights' bfloat16 rounding, which is also what is returned.
    """
    params = run_parameters()
    model = open_model(model_dir, torch.float32)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.999), weight_decay=0)
    own = [weight.detach().clone() for weight in weights]
    steps: list[PlainStep] = []

    def put(values: list[Tensor]) -> None:
        for weight, value in zip(weights, values, strict=True):
            weight.data.copy_(value)

    def rounding() -> list[Tensor]:
        return [value.bfloat16().float() if rounded else value for value in own]

    for one in batches:
        put(rounding())
        losses: list[Tensor] = []
        tokens = 0
        for ids, sampled, behaviour, advantage, weight in sequences_of(one):
            logprobs = (model(input_ids=ids[None]).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
            chosen = logprobs.gather(1, ids[1:, None])[:, 0][sampled[1:]]
            importance = (chosen.detach() - behaviour[1:][sampled[1:]].float()).exp().clamp(max=2.0)
            ratio = (chosen - chosen.detach()).exp()
            losses.append(-(weight * advantage * importance * ratio).sum())
            tokens += int(sampled.sum())
        loss = torch.stack(losses).sum()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), params.training.max_gradient_norm))
        put(own)
        optimizer.step()
        optimizer.zero_grad()
        own = [weight.detach().clone() for weight in weights]
        steps.append(PlainStep(float(loss.detach()), norm, tokens))
    put(rounding())
    return steps, {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("which", EXACT, ids=str)
def test_two_steps_are_those_of_a_plain_loop(
    seen: dict[tuple[int, str], Seen], model_dir: Path, which: tuple[int, str]
):
    steps, weights = plain_loop(model_dir, [batch(1), batch(2)])
    for step, found in zip(steps, seen[which].facts["steps"], strict=False):
        assert found["loss"] == pytest.approx(step.loss, abs=1e-5)
        assert found["gradient_norm"] == pytest.approx(step.gradient_norm, rel=1e-3)
        assert found["tokens"] == step.tokens
        assert found["raw_max"] > found["applied_max"] == pytest.approx(2.0), "the cap was reached"
    base = seen[which].at("base")
    assert largest_difference(base, weights) > 1e-2, "training changes the weights"
    # Adam moves an element whose gradient is within rounding of zero by up to the learning rate either way.
    assert largest_difference(seen[which].at("two"), weights) < 5e-4


@pytest.mark.parametrize("which", LORA_RUNS, ids=str)
def test_with_adapters_only_they_are_trained_and_gathered(
    seen: dict[tuple[int, str], Seen], model_dir: Path, which: tuple[int, str]
):
    found, base = seen[which], open_model(model_dir, torch.float32)
    start, two = found.at("base"), found.at("two")
    assert targets(two) == {name for name, _ in base.named_parameters() if "q_proj" in name or "down_proj" in name}
    assert len(two) == 8
    assert {tensor.shape for name, tensor in two.items() if name.endswith("q_proj.lora_A.weight")} == {(2, 32)}
    assert all(int(start[name].count_nonzero()) == 0 for name in start if name.endswith("lora_B.weight"))
    assert all(largest_difference({"": two[name]}, {"": start[name]}) > 1e-3 for name in two)
    assert largest_difference(start, seen[1, "lora0"].at("base")) == 0, "the seed gives the adapters"
    for label, probe in (("base", "probe"), ("two", "probe_replaced")):
        model = with_adapters(base, found.at(label), AdapterLayout(2, 4.0, "b"))
        assert found.facts[probe] == pytest.approx(reference_logprobs(model, [5, 6, 7, 8]), abs=1e-5)


@pytest.mark.parametrize("which", ROUNDED, ids=str)
def test_published_in_bfloat16_the_trainer_scores_with_what_it_publishes(
    seen: dict[tuple[int, str], Seen], model_dir: Path, which: tuple[int, str]
):
    """The module holds the rounded weights, the optimizer its own: small updates add up instead of being lost."""
    found = seen[which]
    for label in ("base", "two", "three", "loaded", "replaced", "after"):
        assert all(torch.equal(tensor, tensor.bfloat16().float()) for tensor in found.at(label).values()), label
    steps, weights = plain_loop(model_dir, [batch(1), batch(2)], rate=SMALL_RATE, rounded=True)
    for step, one in zip(steps, found.facts["steps"], strict=False):
        assert one["loss"] == pytest.approx(step.loss, abs=1e-5)
        assert one["gradient_norm"] == pytest.approx(step.gradient_norm, rel=1e-3)
    total = sum(weight.numel() for weight in weights.values())
    off = sum(int((found.at("two")[name] != weight).sum()) for name, weight in weights.items())
    moved = sum(int((found.at("two")[name] != base).sum()) for name, base in found.at("base").items())
    assert 0.05 < moved / total < 0.5, "most elements stay where they are"
    assert off / total < 1e-3
    assert found.facts["moved"] == [True] * 5


@pytest.mark.parametrize("which", [*EXACT, (2, "bf16"), *ROUNDED, *LORA_RUNS], ids=str)
def test_a_loaded_checkpoint_goes_on_bit_for_bit(seen: dict[tuple[int, str], Seen], which: tuple[int, str]):
    found = seen[which]
    assert largest_difference(found.at("loaded"), found.at("two")) == 0
    assert largest_difference(found.at("again"), found.at("three")) == 0
    assert found.facts["steps"][2] == found.facts["steps"][3]
    assert largest_difference(found.at("three"), found.at("two")) > 0


@pytest.mark.parametrize("which", [*EXACT, (2, "bf16"), *ROUNDED, *LORA_RUNS], ids=str)
def test_replaced_weights_are_the_ones_that_train(seen: dict[tuple[int, str], Seen], which: tuple[int, str]):
    """The fp32 copies of the optimizer are replaced as well, or the next step would bring the old weights back."""
    found = seen[which]
    assert largest_difference(found.at("replaced"), found.at("two")) == 0
    moved = largest_difference(found.at("after"), found.at("two"))
    assert 0 < moved < 0.05, "one step from where it was put"


@pytest.mark.parametrize("which", EXACT, ids=str)
def test_scores_are_of_the_weights_as_they_are(
    seen: dict[tuple[int, str], Seen], model_dir: Path, which: tuple[int, str]
):
    with torch.no_grad():
        logprobs = open_model(model_dir, torch.float32)(torch.tensor([[5, 6, 7, 8]])).logits[0].log_softmax(-1)
    expected = [float(logprobs[i, token]) for i, token in enumerate((6, 7, 8))]
    assert seen[which].facts["probe"] == pytest.approx(expected, abs=1e-5)
    assert seen[which].facts["probe_replaced"] != pytest.approx(expected, abs=1e-3)


def test_a_learning_rate_of_zero_changes_nothing(seen: dict[tuple[int, str], Seen]):
    """open-instruct#1473: divergence that grows at learning rate 0 is a bug, not staleness."""
    found = seen[1, "null"]
    assert largest_difference(found.at("three"), found.at("base")) == 0
    assert found.facts["steps"][2] == found.facts["steps"][4]


@pytest.mark.parametrize("ranks", [1, 2])
def test_corrections_of_whole_sequences_are_those_of_a_plain_loop(
    seen: dict[tuple[int, str], Seen], model_dir: Path, ranks: int
):
    """A masked sequence keeps its place in the denominators; what each sequence measured comes from all ranks."""
    model = open_model(model_dir, torch.float32)
    loss, masked, k1s = 0.0, 0, list[float]()
    for ids, sampled, behaviour, advantage, weight in sequences_of(batch(1)):
        with torch.no_grad():
            logprobs = (model(input_ids=ids[None]).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
        log_ratio = (logprobs.gather(1, ids[1:, None])[:, 0] - behaviour[1:])[sampled[1:]]
        k1s.append(-float(log_ratio.mean()))
        rejected = abs(k1s[-1]) > math.log(2)
        if rejected or (advantage < 0 and k1s[-1] > 0.2):
            masked += int(sampled.sum()) * (advantage != 0)
        else:
            loss -= weight * advantage * float(log_ratio.exp().clamp(max=2.0).sum())
    found = seen[ranks, "masked"].facts["steps"][0]
    assert found["loss"] == pytest.approx(loss, abs=1e-5)
    assert found["masked_tokens"] == masked > 0
    assert found["k1_by_sequence"] == pytest.approx(k1s, abs=1e-4)
    assert found["lags"] == [0]
    assert found["raw_max"] > found["applied_max"]


@pytest.mark.parametrize("which", [*EXACT, (2, "bf16"), *ROUNDED], ids=str)
def test_a_batch_is_measured_as_the_step_will_see_it(seen: dict[tuple[int, str], Seen], which: tuple[int, str]):
    """Measuring moves no weight: the step after it is that of a plain loop, in the first of these tests."""
    k3, k1_by_sequence = seen[which].facts["measured"]
    step = seen[which].facts["steps"][0]
    tolerance = 2e-2 if which[1] == "bf16" else 1e-5
    assert k3 == pytest.approx(step["k3"], rel=tolerance, abs=tolerance)
    assert k1_by_sequence == pytest.approx(step["k1_by_sequence"], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("stage", ["broken1", "broken3"])
def test_a_number_that_is_none_harms_its_sequence_alone_and_stops_all_ranks(
    seen: dict[tuple[int, str], Seen], stage: str
):
    """Measured, it is that sequence's figure; trained on, no rank waits for the one that found it."""
    facts = seen[2, stage].facts
    spoilt = [
        any(SPOILT in ids[:index] for index in sampled.nonzero().flatten().tolist())
        for ids, sampled, *_ in sequences_of(batch(1))
    ]
    assert [not math.isfinite(k3) for k3 in facts["k3"]] == spoilt
    assert 0 < sum(spoilt) < len(spoilt)
    assert facts["error"] == facts["other_rank"]
    assert "has a log-probability under the current policy that is no number" in facts["error"]


def test_no_tensor_is_gathered_empty(seen: dict[tuple[int, str], Seen]):
    """trl#6386: under ZeRO 3 `numel()` is 0."""
    shapes = {name: tensor.shape for name, tensor in seen[1, "0"].at("base").items()}
    assert {name: tensor.shape for name, tensor in seen[2, "3"].at("base").items()} == shapes
    assert len(shapes) == 2 * 9 + 3
