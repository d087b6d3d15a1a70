"""The mathematics gives the same numbers, and the same gradients, wherever its tensors lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from driftline.divergence import corrections, estimators
from driftline.divergence.corrections import Correction
from driftline.training.objective import ObjectiveChoice, SampledTokens, token_objective
from driftline.training.statistics import StatisticsAccumulator

pytestmark = pytest.mark.gpu

TOKENS = 100_000


def log_ratios() -> Tensor:
    return torch.randn(TOKENS, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3


@pytest.mark.parametrize("estimator", [estimators.k1, estimators.k2, estimators.k3])
def test_token_estimators(cuda: torch.device, estimator: Callable[[Tensor], Tensor]) -> None:
    values = log_ratios()
    found = estimator(values.to(cuda))
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), estimator(values), rtol=1e-12, atol=1e-14)


def test_divergence_sums_and_their_summary(cuda: torch.device) -> None:
    values = log_ratios()
    found, wanted = (estimators.divergence_sums(v) for v in (values.to(cuda), values))
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-11, atol=0)
    on_gpu, on_cpu = estimators.summarise(found), estimators.summarise(wanted)
    assert on_gpu.tokens == TOKENS
    assert on_gpu.k3 == pytest.approx(on_cpu.k3, rel=1e-9)
    assert on_gpu.ess_fraction == pytest.approx(on_cpu.ess_fraction, rel=1e-9)


@pytest.mark.parametrize(
    "correction",
    [
        lambda ratio: corrections.token_truncated(ratio, 1.5),
        lambda ratio: corrections.sequence_truncated(ratio[:100], 2.0),
        corrections.geometric_mean,
        lambda ratio: corrections.icepop(ratio, 0.7, 1.4),
    ],
)
def test_corrections(cuda: torch.device, correction: Callable[[Tensor], Tensor]) -> None:
    ratio = log_ratios().exp()
    torch.testing.assert_close(correction(ratio.to(cuda)).cpu(), correction(ratio), rtol=1e-11, atol=0)


CHOICES = {
    "decoupled": ObjectiveChoice(proximal="interpolated"),
    "sequences": ObjectiveChoice(proximal="interpolated", correction=Correction("sequence_truncated")),
    "cispo": ObjectiveChoice(proximal="behaviour", surrogate="cispo", correction=Correction("none")),
    "gspo": ObjectiveChoice(
        proximal="behaviour", surrogate="gspo", correction=Correction("none"), clip_low=0.01, clip_high=0.01
    ),
    "dppo": ObjectiveChoice(
        proximal="behaviour", surrogate="dppo", correction=Correction("none"), dppo_threshold=0.05
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_the_objective_and_its_gradient(cuda: torch.device, dtype: torch.dtype, choice: ObjectiveChoice) -> None:
    generator = torch.Generator().manual_seed(1)
    behaviour = -torch.rand(TOKENS, generator=generator, dtype=torch.float64) * 3
    moved = (behaviour + 0.2 * torch.randn(TOKENS, generator=generator, dtype=torch.float64)).to(dtype)
    lag = torch.randint(0, 5, (TOKENS,), generator=generator)
    sequence = torch.arange(TOKENS) // 100
    advantage = torch.randn(TOKENS // 100, generator=generator, dtype=dtype)[sequence]
    results: list[tuple[Tensor, Tensor]] = []
    for device in (torch.device("cpu"), cuda):
        current = moved.to(device).requires_grad_()
        tokens = SampledTokens(*(t.to(device) for t in (behaviour, lag, advantage, sequence)))
        objective = token_objective(current, tokens, choice).objective_N
        (gradient,) = torch.autograd.grad(objective.sum(), current)
        results.append((objective.detach().cpu(), gradient.cpu()))
    (on_cpu, cpu_gradient), (on_gpu, gpu_gradient) = results
    rtol, atol = (1e-11, 1e-13) if dtype == torch.float64 else (1e-5, 1e-6)
    torch.testing.assert_close(on_gpu, on_cpu, rtol=rtol, atol=atol)
    if dtype == torch.float64:
        torch.testing.assert_close(gpu_gradient, cpu_gradient, rtol=rtol, atol=atol)
    else:  # A ratio at its very clip may fall on either side of it.
        same = (gpu_gradient - cpu_gradient).abs() <= 1e-5
        assert same.double().mean() > 0.999
    clipped = (gpu_gradient == 0).double().mean().item()
    assert choice.surrogate == "cispo" or 0.01 < clipped < 0.6, "the draw must reach the limit"


def test_statistics_of_a_step(cuda: torch.device) -> None:
    generator = torch.Generator().manual_seed(2)
    log_ratio = 0.3 * torch.randn(5000, generator=generator)
    values = {
        "loss": torch.tensor(0.25),
        "entropy_N": torch.rand(5000, generator=generator),
        "log_ratio_N": log_ratio,
        "applied_N": log_ratio.exp().clamp(max=1.5),
        "clipped_N": log_ratio > 0.4,
        "advantage_N": torch.randn(5000, generator=generator),
        "lag_N": torch.randint(0, 3, (5000,), generator=generator),
    }
    read: list[tuple[float, ...]] = []
    for device in (torch.device("cpu"), cuda):
        statistics = StatisticsAccumulator()
        statistics.add(**{name: value.to(device) for name, value in values.items()})
        found = statistics.read()
        read.append((found.loss, found.entropy_nats, found.divergence.k3, found.floor.k3, found.clip_share))
    assert read[1] == pytest.approx(read[0], rel=1e-5)
    assert read[0][0] == 0.25
