"""The formulas against the reference file: ours, and any other that DRIFTLINE_REFERENCE names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from driftline.divergence import corrections, estimators
from driftline.divergence.age import age
from driftline.training.advantages import group_advantages
from driftline.training.losses import (
    cispo_coefficient,
    cispo_surrogate,
    clipped_surrogate,
    gspo_ratio,
    sequence_weights,
    total_variation_mask,
)
from driftline.training.objective import ObjectiveChoice, SampledTokens, objective_around

TOLERANCE = 1e-5
FILES = [Path(__file__).with_name("formulas.json")]
if os.environ.get("DRIFTLINE_REFERENCE"):
    FILES.append(Path(os.environ["DRIFTLINE_REFERENCE"]))
REFERENCES: list[dict[str, Any]] = [json.loads(path.read_text()) for path in FILES]


PROBS = ("current", "proximal", "behaviour")


def cases(name: str) -> list[dict[str, Any]]:
    found = [case for reference in REFERENCES for case in reference[name]]
    assert found
    return found


def f64(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(value: Any, expected: Any) -> bool:
    return torch.allclose(torch.as_tensor(value, dtype=torch.float64), f64(expected), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("case", cases("advantages"))
def test_advantages(case: dict[str, Any]):
    names: dict[str, str] = {"grpo_sample_std": "grpo", "grpo_population_std": "grpo_population"}
    for name, expected in case["expect"].items():
        kind = str(names.get(name, name))
        found = group_advantages(f64(case["rewards"]), f64(case["valid"]), kind)
        assert close(found, expected), name


@pytest.mark.parametrize("case", cases("divergence"))
def test_divergence(case: dict[str, Any]):
    log_ratio = f64(case["current_logprobs"]) - f64(case["behaviour_logprobs"])
    expected = case["expect"]
    found = estimators.summarise(estimators.divergence_sums(log_ratio))
    tokens = log_ratio.numel()
    assert close(log_ratio.exp(), expected["ratio"])
    assert close(estimators.k3(log_ratio), expected["k3"])
    assert close(estimators.effective_sample_size(log_ratio.exp()), expected["ess"])
    assert close(estimators.sequence_ratio(log_ratio), expected["sequence_ratio"])
    assert close(estimators.geometric_mean_ratio(log_ratio), expected["geometric_mean_ratio"])
    for name, value in {
        "k1_mean": found.k1,
        "k2_mean": found.k2,
        "k3_mean": found.k3,
        "chi_square": found.chi_square,
        "total_variation": found.total_variation,
        "ess_fraction": found.ess_fraction,
        "ess": found.ess_fraction * tokens,
    }.items():
        assert close(value, expected[name]), name
    assert close(estimators.k1(log_ratio).mean(), expected["k1_mean"])
    assert close(estimators.k2(log_ratio).mean(), expected["k2_mean"])
    assert close(found.ess, expected["ess"])
    assert close(found.sequence_ratio, expected["sequence_ratio"])
    assert close(found.geometric_mean_ratio, expected["geometric_mean_ratio"])


@pytest.mark.parametrize("case", cases("corrections"))
def test_corrections(case: dict[str, Any]):
    ratio, expected = f64(case["ratio"]), case["expect"]
    low, high = case["low"], case["high"]
    assert close(corrections.token_truncated(ratio, case["token_cap"]), expected["token_tis"])
    assert close(corrections.sequence_truncated(ratio, case["sequence_cap"]), expected["sequence_tis"])
    assert close(corrections.icepop(ratio, low, high), expected["icepop"])
    assert close(corrections.out_of_band(ratio, low, high), expected["icepop_out_of_band"])
    assert close(corrections.geometric_mean(ratio), expected["geometric_mean"])
    wanted: dict[corrections.CorrectionKind, tuple[float, Any]] = {
        "token_truncated": (case["token_cap"], expected["token_tis"]),
        "sequence_truncated": (case["sequence_cap"], [expected["sequence_tis"]] * len(ratio)),
        "icepop": (case["token_cap"], expected["icepop"]),
    }
    for kind, (cap, weights) in wanted.items():
        value = corrections.Correction(kind, cap, low, high)
        found = corrections.importance_weights(ratio.log(), torch.zeros(len(ratio), dtype=torch.long), value)
        assert close(found.applied_T, weights), kind
        assert torch.allclose(found.raw_T, ratio, rtol=TOLERANCE), kind


@pytest.mark.parametrize("case", cases("surrogates"))
def test_surrogates(case: dict[str, Any]):
    found = clipped_surrogate(
        f64([case["ratio"]]), f64([case["advantage"]]), case["clip_low"], case["clip_high"], case["dual_clip"]
    )
    assert close(found, [case["expect"]])


@pytest.mark.parametrize("case", cases("decoupled"))
def test_decoupled(case: dict[str, Any]):
    current, proximal, behaviour = (
        f64([case[f"{name}_prob"]]).log() for name in ("current", "proximal", "behaviour")
    )
    tokens = SampledTokens(behaviour, torch.tensor([1]), f64([case["advantage"]]), torch.tensor([0]))
    choice = ObjectiveChoice(
        correction=corrections.Correction("token_truncated", cap=1e6),
        clip_low=case["clip_low"],
        clip_high=case["clip_high"],
    )
    assert close(objective_around(current, proximal, tokens, choice).objective_N, [case["expect"]])


@pytest.mark.parametrize("case", cases("gspo"))
def test_gspo(case: dict[str, Any]):
    log_ratio = f64(case["log_ratio"])
    found = gspo_ratio(log_ratio, torch.zeros(len(log_ratio), dtype=torch.long))
    assert found.max() == found.min()
    assert abs(float(found[0]) - case["expect"]["sequence_ratio"]) < 1e-9, "the clip is at 1e-4: be exact"
    low, high = case["clip_low"], case["clip_high"]
    above, below = (clipped_surrogate(found, f64([sign]), low, high) for sign in (1.0, -1.0))
    bounds = [float(above[0]), -float(below[0])]
    assert min(abs(bound - case["expect"]["clipped"]) for bound in bounds) < 1e-9, "one advantage meets the clip"


@pytest.mark.parametrize("case", cases("cispo"))
def test_cispo(case: dict[str, Any]):
    limits = (case["clip_low"], case["clip_high"])
    ratio, advantage = f64([case["ratio"]]), f64([case["advantage"]])
    assert close(cispo_coefficient(ratio, *limits) * advantage, [case["expect_coefficient"]])
    current = f64([-0.7]).requires_grad_()
    (gradient,) = torch.autograd.grad(cispo_surrogate(current, ratio, advantage, *limits).sum(), current)
    assert close(gradient, [case["expect_coefficient"]])


@pytest.mark.parametrize("case", cases("dppo_total_variation_mask"))
def test_total_variation_mask(case: dict[str, Any]):
    found = total_variation_mask(
        f64([case["current_prob"]]).log(),
        f64([case["behaviour_prob"]]).log(),
        f64([case["advantage"]]),
        case["threshold"],
    )
    assert found.tolist() == [case["expect_masked"]]


@pytest.mark.parametrize("case", cases("a3po_proximal"))
def test_interpolated_proximal(case: dict[str, Any]):
    found = corrections.interpolated_proximal(
        f64([case["current_prob"]]).log(),
        f64([case["behaviour_prob"]]).log(),
        current_version=case["current_version"],
        proximal_version=case["proximal_version"],
        behaviour_version=case["behaviour_version"],
    )
    assert close(found, [case["expect_logprob"]])


@pytest.mark.parametrize("case", cases("opsm"))
def test_negative_sequence_mask(case: dict[str, Any]):
    log_ratio = f64(case["current_logprobs"]) - f64(case["behaviour_logprobs"])
    advantage = torch.full_like(log_ratio, case["advantage"])
    sequence = torch.zeros(len(log_ratio), dtype=torch.long)
    found = corrections.negative_sequence_mask(log_ratio, advantage, sequence, case["threshold"])
    assert found.tolist() == [case["expect_dropped"]] * len(log_ratio)


@pytest.mark.parametrize("case", cases("aggregation"))
def test_aggregation(case: dict[str, Any]):
    losses = case["token_losses"]
    lengths = torch.tensor([len(row) for row in losses])
    for name, expected in case["expect"].items():
        weights = sequence_weights(lengths, name, case["constant"])
        found = sum(weight * sum(row) for weight, row in zip(weights.tolist(), losses, strict=True))
        assert close(found, expected), name


@pytest.mark.parametrize("case", cases("age"))
def test_age(case: dict[str, Any]):
    found = age(case["trained_from_version"], case["first_token_version"], case["last_token_version"])
    assert {name: getattr(found, name) for name in case["expect"]} == case["expect"]


def test_no_section_of_a_reference_goes_unchecked():
    checked = {
        *("about", "advantages", "divergence", "corrections", "surrogates", "decoupled", "aggregation", "age"),
        *("exact_kl", "gspo", "cispo", "dppo_total_variation_mask", "a3po_proximal", "opsm"),
    }
    assert {name for reference in REFERENCES for name in reference} <= checked


@pytest.mark.parametrize("reference", REFERENCES)
def test_exact_divergence(reference: dict[str, Any]):
    case = reference["exact_kl"]
    behaviour, current = f64(case["behaviour"]), f64(case["current"])
    assert close(estimators.exact_kl(behaviour, current), case["kl_behaviour_current"])
    assert close(estimators.exact_total_variation(behaviour, current), case["total_variation"])
    assert close(estimators.exact_chi_square(behaviour, current), case["chi_square"])
