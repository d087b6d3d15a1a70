"""Diagnosis names the cause: planted faults, and as many runs without one, over synthetic log-probabilities.

A small softmax policy is trained on by random steps; an engine samples from what it holds, and the trainer scores.
Each fault is planted as it happens: in the weights, the temperature, the rounding, the lag or the token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from driftline.divergence.diagnosis import Diagnosis, DiagnosisLimits, EngineFigures, diagnose, growth
from driftline.divergence.estimators import NOTHING, DivergenceSummary, divergence_sums, summarise

SEEDS = range(20)
LIMITS = DiagnosisLimits(floor_k3_nats=1e-6, budget_k3_nats=1e-3, probe_nats=1e-4)
STATES, VOCABULARY, TOKENS = 64, 20, 600
STEP = 0.006
"""Size of a training step in logits: k3 is about 1e-5 at lag 1, and grows with the square of the lag."""
NOISE = 1e-5
"""What engine and trainer differ by in fp32, nats."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with the engines of a run; the defaults are nothing."""

    stuck_engine: str = ""
    temperature: float = 1.0
    bf16: bool = False
    forced_lag: int | None = None
    retokenised_share: float = 0.0


class Run:
    """Versions 0 to 20 of a policy, two engines that sample from them, and a trainer that scores."""

    def __init__(self, seed: int, fault: Fault) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._fault = fault
        drift = self._normal(STATES, VOCABULARY)
        logits = self._normal(STATES, VOCABULARY)
        self._versions = [logits]
        for _ in range(20):
            drift = 0.9 * drift + self._normal(STATES, VOCABULARY) * 0.45
            self._versions.append(self._versions[-1] + STEP * drift)

    def diagnose(self, limits: DiagnosisLimits = LIMITS) -> Diagnosis:
        current = len(self._versions) - 1
        sums: dict[int, Tensor] = {}
        engines: list[EngineFigures] = []
        for name in ("c0", "c1"):
            held = current - 6 if name == self._fault.stuck_engine else current
            lags = [0, 1, 2, 3] if self._fault.forced_lag is None else [self._fault.forced_lag]
            for lag in lags:
                log_ratio = self._sample(held - lag, current)
                sums[lag] = sums.get(lag, 0) + divergence_sums(log_ratio)
            own = summarise(divergence_sums(self._sample(held, current))) if 0 in lags else NOTHING
            engines.append(EngineFigures(name, current, self._probe(held, current), own))
        return diagnose(engines, {lag: summarise(found) for lag, found in sums.items()}, limits)

    def _sample(self, held: int, current: int) -> Tensor:
        """Log ratios of tokens that an engine holding one version sampled, scored by another."""
        state = torch.randint(STATES, (TOKENS,), generator=self._generator)
        engine = self._logprobs(self._versions[held] / self._fault.temperature)
        if self._fault.bf16:
            engine = self._logprobs(self._versions[held].bfloat16().double()).bfloat16().double()
        token = torch.multinomial(engine[state].exp(), 1, generator=self._generator)[:, 0]
        behaviour = engine[state, token]
        other = torch.randint(VOCABULARY, (TOKENS,), generator=self._generator)
        swapped = torch.rand(TOKENS, generator=self._generator) < self._fault.retokenised_share
        scored = self._logprobs(self._versions[current])[state, torch.where(swapped, other, token)]
        return scored - behaviour + NOISE * self._normal(TOKENS)

    def _probe(self, held: int, current: int) -> float:
        differences = self._logprobs(self._versions[held]) - self._logprobs(self._versions[current])
        return float((differences[:16, 0] + NOISE * self._normal(16)).abs().max())

    def _logprobs(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_run_raises_no_alarm(seed: int):
    found = Run(seed, Fault()).diagnose()
    assert found.cause == "healthy", found.why
    assert found.figures["floor_k3_nats"] < LIMITS.floor_k3_nats < found.figures["k3_nats"]


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_not_updated_on_one_engine(seed: int):
    """verl#7495: it looks like staleness."""
    found = Run(seed, Fault(stuck_engine="c1")).diagnose()
    assert (found.cause, found.engine) == ("failed weight sync", "c1")
    assert "from the probe of version 20" in found.why
    assert found.figures["probe_difference_max_nats"] > 10 * LIMITS.probe_nats


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_not_updated_on_one_engine_without_a_probe(seed: int):
    """Its own tokens of lag 0 stand out from those of the other engine."""
    found = Run(seed, Fault(stuck_engine="c0")).diagnose(replace(LIMITS, probe_nats=float("inf")))
    assert (found.cause, found.engine) == ("failed weight sync", "c0")
    assert "its weights are not those" in found.why


@pytest.mark.parametrize("seed", SEEDS)
def test_another_temperature(seed: int):
    """trl#4159: temperature on one side only."""
    found = Run(seed, Fault(temperature=1.1)).diagnose()
    assert found.cause == "engine mismatch", found.why
    assert "at lag 0" in found.why


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bf16_engine_against_an_fp32_trainer(seed: int):
    """AReaL#1290: drift that depends on the engine is measured at lag 0."""
    found = Run(seed, Fault(bf16=True)).diagnose()
    assert found.cause == "engine mismatch", found.why


@pytest.mark.parametrize("seed", SEEDS)
def test_lag_forced_to_16(seed: int):
    found = Run(seed, Fault(forced_lag=16)).diagnose()
    assert found.cause == "staleness", found.why
    assert "lag 16; at lag 0 it is not measured" in found.why
    assert found.figures["lag_max"] == 16


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_that_were_tokenised_again(seed: int):
    """verl#3960, rllm#272: other ids for the same text are other tokens."""
    found = Run(seed, Fault(retokenised_share=0.05)).diagnose()
    assert found.cause == "engine mismatch", found.why


def summary(k3: float, tokens: int = 10_000, error: float = 0.0) -> DivergenceSummary:
    return replace(NOTHING, tokens=tokens, k3=k3, k3_error=error)


def engine(
    probe: float | None = None, floor: DivergenceSummary = NOTHING, name: str = "c0", *, refused: bool = False
) -> EngineFigures:
    return EngineFigures(name, 7, probe, floor, refused)


GOOD = summary(1e-7)


@pytest.mark.parametrize(
    ("engines", "by_lag", "cause"),
    [
        ([], {}, "healthy"),
        ([engine(1e-4, GOOD)], {0: GOOD, 2: summary(1e-3)}, "healthy"),
        ([engine(1.1e-4, refused=True)], {0: GOOD}, "failed weight sync"),
        ([engine(1.1e-4), engine(1e-6, name="c1")], {0: GOOD}, "failed weight sync"),
        ([engine(0.11)], {0: GOOD}, "failed weight sync"),
        ([engine(float("nan"))], {0: GOOD}, "failed weight sync"),
        ([engine(1.1e-4)], {0: GOOD}, "engine mismatch"),
        ([engine(0.03), engine(0.02, name="c1")], {0: GOOD}, "engine mismatch"),
        ([engine(1e-6, summary(2e-6))], {}, "engine mismatch"),
        ([engine(1e-6, summary(float("inf")))], {}, "engine mismatch"),
        ([engine(1e-6, summary(2e-6, error=3e-7))], {}, "healthy"),
        ([engine(1e-6, summary(2e-6, tokens=199))], {}, "healthy"),
        ([engine(1e-6, GOOD)], {0: summary(1e-2), 1: GOOD}, "staleness"),
        ([engine(1e-6, GOOD)], {0: GOOD, 4: summary(5e-3)}, "staleness"),
        ([engine(1e-6, summary(2e-6))], {0: GOOD, 4: summary(5e-3)}, "engine mismatch"),
        ([engine(1e-6, GOOD)], {4: summary(5e-3, tokens=199)}, "healthy"),
        ([engine(1e-6, GOOD)], {4: summary(2e-3, error=3e-4)}, "healthy"),
        ([engine(1e-6, GOOD)], {0: summary(1.0), 4: summary(1.0, tokens=100)}, "healthy"),
    ],
)
def test_the_order_of_causes(engines: list[EngineFigures], by_lag: Mapping[int, DivergenceSummary], cause: str):
    assert diagnose(engines, by_lag, LIMITS).cause == cause


def test_what_is_over_the_budget_within_its_error_says_so():
    under, over = (diagnose([engine(1e-6, GOOD)], {4: summary(k3, error=3e-4)}, LIMITS).why for k3 in (4e-4, 1.2e-3))
    assert under.endswith("budget 1.00e-03")
    assert over.endswith("not surely above the budget of 1.00e-03: its standard error is 3.0e-04")


def test_one_engine_alone_or_all_alike_do_not_stand_out():
    high = summary(1e-3)
    assert diagnose([engine(1e-6, high)], {0: high}, LIMITS).cause == "engine mismatch"
    alike = [engine(1e-6, high), engine(1e-6, summary(8e-4), name="c1")]
    assert diagnose(alike, {0: high}, LIMITS).cause == "engine mismatch"
    apart = [engine(1e-6, high), engine(1e-6, summary(1e-8), name="c1")]
    assert diagnose(apart, {0: high}, LIMITS).engine == "c0"


def test_an_engine_stands_out_from_all_others_or_not_at_all():
    """One that is far off beside one that is off by little: no engine alone explains the floor."""
    far, little = engine(1e-6, summary(1e-3)), engine(1e-6, summary(2e-4), name="c1")
    good = engine(1e-6, summary(1e-8), name="c2")
    assert diagnose([far, little, good], {}, LIMITS).cause == "engine mismatch"
    assert diagnose([far, replace(little, floor=summary(5e-5)), good], {}, LIMITS).engine == "c0"


def test_few_tokens_taken_for_others_do_not_make_an_engine_stand_out():
    """Re-tokenised seams fall to one engine by chance; weights of another version move every token."""
    whole = engine(1e-6, summary(1e-13, 256), name="c1")
    seams = engine(1e-6, summary(2e-2, 256, error=9e-3))
    assert diagnose([seams, whole], {}, LIMITS).cause == "engine mismatch"
    moved = engine(1e-6, summary(2e-2, 256, error=2e-3))
    assert diagnose([moved, whole], {}, LIMITS).cause == "failed weight sync"


def test_figures_by_hand():
    found = diagnose(
        [engine(2e-5, summary(3e-7, 50))],
        {0: summary(1e-7, 300), 2: summary(1e-3, 100), 4: summary(3e-3, 100)},
        LIMITS,
    )
    assert found.figures["tokens"] == 500
    assert found.figures["k3_nats"] == pytest.approx((300 * 1e-7 + 0.1 + 0.3) / 500)
    assert found.figures["lag_max"] == 4
    assert found.figures["probe_difference_max_nats"] == 2e-5
    assert (found.figures["floor_k3_nats"], found.figures["floor_tokens"]) == (3e-7, 50)
    assert growth({0: summary(0.0), 1: summary(1.0), 2: summary(2.0)}) == pytest.approx(1.0)
    assert growth({3: summary(5.0)}) == growth({}) == 0.0
