"""Why engine and trainer disagree: one of four causes, named from figures that are measured anyway.

    failed weight sync   an engine does not reproduce the log-probabilities of its manifest's probe while others do,
                         or its own floor stands out from theirs
    engine mismatch      the floor is too high: tokens sampled by the very weights that score them
    staleness            divergence is over the budget, the floor is not
    healthy              none of these

They are asked in this order: weights that never arrived raise the floor, and a raised floor raises every lag, so
that each cause can look like the next one. A k3 counts as too high only beyond `certainty` standard errors.

The floor is of members whose tokens are all of lag 0, not of every token of lag 0: where running requests keep their
KV cache over an update, the tokens after it are of no version's distribution, and differ by more than arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from driftline.measured import PROBE_NATS, Cause, Diagnosis, DivergenceSummary, pooled

CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, slots=True)
class DiagnosisLimits:
    """What counts as too much."""

    floor_k3_nats: float
    """Most k3 a token of the floor: measured for the pair of engine and trainer, with room."""
    budget_k3_nats: float
    """Most k3 a token of a batch."""
    probe_nats: float
    """Largest difference from the probe's log-probabilities: 1e-4 in fp32, the engine's floor in bf16."""
    fewest_tokens: int = 200
    """Tokens of a lag, or of an engine, below which nothing is concluded from them."""
    certainty: float = 4.0
    """Standard errors by which a limit must be exceeded."""
    outlier_ratio: float = 10.0
    """How many times the other engines' floor one engine's must be, to stand out; and how many times its limit a
    floor must be, to be too high however few tokens make it so."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What is known of one engine."""

    engine: str
    version: int
    """Policy version that it says it serves; for a refused one, the version that it refused."""
    probe_difference_nats: float | None
    """Largest difference from the manifest's probe log-probabilities; None where it was not asked."""
    floor: DivergenceSummary
    """Of its own members whose tokens are all of lag 0."""
    refused: bool = False
    """Whether it ended because it did not reproduce the probe."""


def diagnose(
    engines: Sequence[EngineFigures], by_lag: Mapping[int, DivergenceSummary], limits: DiagnosisLimits
) -> Diagnosis:
    """Name the cause.

    Args:
        engines: Every engine that is alive, or whose tokens are in `by_lag`.
        by_lag: Divergence of the tokens of each lag, over the last steps.
        limits: What counts as too much.
    """
    figures = _figures(engines, by_lag, limits)
    unsynced = _off_the_probe(engines, limits) or _standing_out(engines, limits)
    if unsynced is not None:
        engine, why = unsynced
        return Diagnosis("failed weight sync", why, figures, engine.engine)
    mismatch = _mismatch(engines, limits)
    if mismatch:
        return Diagnosis("engine mismatch", mismatch, figures)
    return _by_lag(by_lag, figures, limits)


def growth(by_lag: Mapping[int, DivergenceSummary]) -> float:
    """Slope of k3 over lag in nats a token and version, by least squares with each token counting once; 0 without."""
    tokens = sum(found.tokens for found in by_lag.values())
    if tokens == 0:
        return 0.0
    lag_mean = sum(lag * found.tokens for lag, found in by_lag.items()) / tokens
    spread = sum(found.tokens * (lag - lag_mean) ** 2 for lag, found in by_lag.items())
    if spread == 0:
        return 0.0
    return sum(found.tokens * (lag - lag_mean) * found.k3 for lag, found in by_lag.items()) / spread


def _off_the_probe(engines: Sequence[EngineFigures], limits: DiagnosisLimits) -> tuple[EngineFigures, str] | None:
    """The engine that does not hold the weights it says, by its probe.

    One that refused a version, or is off by more than any arithmetic explains, or off where another engine is not.
    """
    off = [engine for engine in engines if not _within(engine.probe_difference_nats, limits.probe_nats)]
    others_agree = any(
        engine.probe_difference_nats is not None and engine not in off and not engine.refused for engine in engines
    )
    for engine in engines:
        far = not _within(engine.probe_difference_nats, max(limits.probe_nats, *PROBE_NATS.values()))
        if engine.refused or far or (engine in off and others_agree):
            return engine, (
                f"engine {engine.engine} differs by {engine.probe_difference_nats or 0.0:.2e} nats from the probe of "
                f"version {engine.version}, limit {limits.probe_nats:.2e}: restart it"
            )
    return None


def _standing_out(engines: Sequence[EngineFigures], limits: DiagnosisLimits) -> tuple[EngineFigures, str] | None:
    """The engine whose floor is that of other weights.

    Those move all of its tokens a little, so that its floor is known well. A floor made by few tokens, taken for
    others, is not, and by chance more of them fall to one engine than to another.
    """
    measured = [engine for engine in engines if engine.floor.tokens >= limits.fewest_tokens]
    for engine in measured:
        others = [other.floor.k3 for other in measured if other is not engine]
        if not others or not _too_high(engine.floor, limits):
            continue
        surely = engine.floor.k3 - limits.certainty * engine.floor.k3_error
        if not surely <= limits.outlier_ratio * max(others):
            return engine, (
                f"engine {engine.engine} has k3 {engine.floor.k3:.2e} nats a token at lag 0, the others at most "
                f"{max(others):.2e}: its weights are not those of version {engine.version}: restart it"
            )
    return None


def _mismatch(engines: Sequence[EngineFigures], limits: DiagnosisLimits) -> str:
    """How engine and trainer disagree with the same weights; empty where they do not."""
    floor = pooled(engine.floor for engine in engines)
    if _too_high(floor, limits):
        return (
            f"k3 is {floor.k3:.2e} nats a token at lag 0 over {floor.tokens} tokens, limit "
            f"{limits.floor_k3_nats:.2e}: engine and trainer disagree with the same weights: compare dtype, "
            "temperature, kernels, tokenisation"
        )
    for engine in engines:
        if not _within(engine.probe_difference_nats, limits.probe_nats):
            return (
                f"engine {engine.engine} differs by {engine.probe_difference_nats:.2e} nats from the probe of "
                f"version {engine.version}, limit {limits.probe_nats:.2e}, as coarser arithmetic does: compare "
                "engine.dtype and training.dtype"
            )
    return ""


def _by_lag(
    by_lag: Mapping[int, DivergenceSummary], figures: Mapping[str, float], limits: DiagnosisLimits
) -> Diagnosis:
    stale = {lag: found for lag, found in by_lag.items() if lag > 0 and found.tokens}
    tokens = sum(found.tokens for found in stale.values())
    k3, floor = figures.get("k3_nats", 0.0), figures.get("floor_k3_nats")
    if tokens < limits.fewest_tokens or not _exceeds(pooled(by_lag.values()), limits.budget_k3_nats, limits):
        budget, error = f"{limits.budget_k3_nats:.2e}", figures.get("k3_error_nats", 0.0)
        unsure = f"not surely above the budget of {budget}: its standard error is {error:.1e}"
        within = f"budget {budget}" if k3 <= limits.budget_k3_nats else unsure
        return Diagnosis("healthy", f"k3 is {k3:.2e} nats a token, {within}", figures)
    known = "not measured" if floor is None else f"{floor:.2e} nats"
    lags = f"{min(stale)} to {max(stale)}" if len(stale) > 1 else f"{min(stale)}"
    return Diagnosis(
        "staleness",
        f"k3 is {k3:.2e} nats a token, budget {limits.budget_k3_nats:.2e}, with tokens of lag {lags}; at lag 0 it is "
        f"{known}: lower the lead or the learning rate",
        figures,
    )


def _within(difference: float | None, limit: float) -> bool:
    return difference is None or difference <= limit


def _too_high(floor: DivergenceSummary, limits: DiagnosisLimits) -> bool:
    """Whether a floor is. Tokens that were taken for others make one of few, huge terms, and so of a large error."""
    far = floor.k3 > limits.outlier_ratio * limits.floor_k3_nats and floor.tokens >= limits.fewest_tokens
    return far or _exceeds(floor, limits.floor_k3_nats, limits)


def _exceeds(found: DivergenceSummary, limit: float, limits: DiagnosisLimits) -> bool:
    if found.tokens < limits.fewest_tokens:
        return False
    return not found.k3 - limits.certainty * found.k3_error <= limit


def _figures(
    engines: Sequence[EngineFigures], by_lag: Mapping[int, DivergenceSummary], limits: DiagnosisLimits
) -> dict[str, float]:
    every, floor = pooled(by_lag.values()), pooled(engine.floor for engine in engines)
    figures = {
        "tokens": float(every.tokens),
        "growth_nats_per_version": growth(by_lag),
        "budget_k3_nats": limits.budget_k3_nats,
        "floor_limit_nats": limits.floor_k3_nats,
        "probe_limit_nats": limits.probe_nats,
    }
    if every.tokens:
        figures |= {"k3_nats": every.k3, "k3_error_nats": every.k3_error}
        figures["lag_max"] = float(max(lag for lag, found in by_lag.items() if found.tokens))
    if floor.tokens:
        figures |= {"floor_k3_nats": floor.k3, "floor_k3_error_nats": floor.k3_error}
        figures["floor_tokens"] = float(floor.tokens)
    probes = [engine.probe_difference_nats for engine in engines if engine.probe_difference_nats is not None]
    if probes:
        figures["probe_difference_max_nats"] = math.nan if any(map(math.isnan, probes)) else max(probes)
    return figures
