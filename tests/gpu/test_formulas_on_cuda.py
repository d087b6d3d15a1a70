"""The mathematics gives the same numbers, and the same gradients, wherever its tensors lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from driftline.divergence import corrections, estimators
from driftline.training import losses
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_loss_and_its_gradient(cuda: torch.device, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    proximal = -torch.rand(TOKENS, generator=generator, dtype=dtype) * 3
    moved = proximal + 0.2 * torch.randn(TOKENS, generator=generator, dtype=dtype)
    advantage = torch.randn(TOKENS, generator=generator, dtype=dtype)
    importance = corrections.token_truncated((0.2 * torch.randn(TOKENS, generator=generator, dtype=dtype)).exp(), 2.0)
    results: list[tuple[Tensor, Tensor]] = []
    for device in (torch.device("cpu"), cuda):
        current = moved.to(device).requires_grad_()
        constants = [t.to(device) for t in (proximal, importance, advantage)]
        objective = losses.decoupled_surrogate(current, *constants, clip_low=0.2, clip_high=0.28)
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
    assert 0.05 < clipped < 0.5, "the draw must reach the clip"


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
