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
from driftline.training.losses import clipped_surrogate, decoupled_surrogate, sequence_weights

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


@pytest.mark.parametrize("case", cases("corrections"))
def test_corrections(case: dict[str, Any]):
    ratio, expected = f64(case["ratio"]), case["expect"]
    low, high = case["low"], case["high"]
    assert close(corrections.token_truncated(ratio, case["token_cap"]), expected["token_tis"])
    assert close(corrections.sequence_truncated(ratio, case["sequence_cap"]), expected["sequence_tis"])
    assert close(corrections.icepop(ratio, low, high), expected["icepop"])
    assert close(corrections.out_of_band(ratio, low, high), expected["icepop_out_of_band"])
    assert close(corrections.geometric_mean(ratio), expected["geometric_mean"])


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
    found = decoupled_surrogate(
        current,
        proximal,
        (proximal - behaviour).exp(),
        f64([case["advantage"]]),
        case["clip_low"],
        case["clip_high"],
    )
    assert close(found, [case["expect"]])


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


@pytest.mark.parametrize("reference", REFERENCES)
def test_exact_divergence(reference: dict[str, Any]):
    case = reference["exact_kl"]
    behaviour, current = f64(case["behaviour"]), f64(case["current"])
    assert close(estimators.exact_kl(behaviour, current), case["kl_behaviour_current"])
    assert close(estimators.exact_total_variation(behaviour, current), case["total_variation"])
    assert close(estimators.exact_chi_square(behaviour, current), case["chi_square"])
