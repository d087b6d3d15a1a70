"""Why engine and trainer disagree: one of four causes, named from figures that are measured anyway.

    failed weight sync   an engine does not reproduce the log-probabilities of its manifest's probe, or its own
                         tokens of lag 0 stand out from those of the other engines
    engine mismatch      the floor is too high: tokens of lag 0, sampled by the very weights that score them
    staleness            divergence is over the budget, the floor is not, and it grows with lag
    healthy              none of these

They are asked in this order: weights that never arrived raise the floor, and a raised floor raises every lag, so
that each cause can look like the next one. A floor counts as too high only beyond `certainty` standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from driftline.measured import Cause, Diagnosis, DivergenceSummary

CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, slots=True)
class DiagnosisLimits:
    """What counts as too much."""

    floor_k3_nats: float
    """Most k3 a token at lag 0: measured for the pair of engine and trainer, with room."""
    budget_k3_nats: float
    """Most k3 a token of a batch."""
    probe_nats: float
    """Largest difference from the probe's log-probabilities: 1e-4 in fp32, the engine's floor in bf16."""
    fewest_tokens: int = 200
    """Tokens of a lag, or of an engine, below which nothing is concluded from them."""
    certainty: float = 4.0
    """Standard errors by which a limit must be exceeded."""
    outlier_ratio: float = 10.0
    """How many times the other engines' floor one engine's must be, to stand out."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What is known of one engine."""

    engine: str
    version: int
    """Policy version that it says it serves."""
    probe_difference_nats: float | None
    """Largest difference from the manifest's probe log-probabilities; None where it was not asked."""
    floor: DivergenceSummary
    """Of its own tokens of lag 0."""


def diagnose(
    engines: Sequence[EngineFigures], by_lag: Mapping[int, DivergenceSummary], limits: DiagnosisLimits
) -> Diagnosis:
    """Name the cause.

    Args:
        engines: Every engine that is alive.
        by_lag: Divergence of the tokens of each lag, over the last steps.
        limits: What counts as too much.
    """
    figures = _figures(engines, by_lag)
    unsynced = _unsynced(engines, limits)
    if unsynced is not None:
        engine, why = unsynced
        return Diagnosis("failed weight sync", why, figures, engine.engine)
    floor = by_lag.get(0)
    if floor is not None and _exceeds(floor, limits.floor_k3_nats, limits):
        return Diagnosis(
            "engine mismatch",
            f"k3 is {floor.k3:.2e} nats a token at lag 0 over {floor.tokens} tokens, limit "
            f"{limits.floor_k3_nats:.2e}: engine and trainer disagree with the same weights",
            figures,
        )
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


def _by_lag(
    by_lag: Mapping[int, DivergenceSummary], figures: Mapping[str, float], limits: DiagnosisLimits
) -> Diagnosis:
    stale = {lag: found for lag, found in by_lag.items() if lag > 0 and found.tokens}
    tokens = sum(found.tokens for found in stale.values())
    k3, floor = figures.get("k3_nats", 0.0), figures.get("floor_k3_nats")
    if k3 <= limits.budget_k3_nats or tokens < limits.fewest_tokens:
        return Diagnosis("healthy", f"k3 is {k3:.2e} nats a token, budget {limits.budget_k3_nats:.2e}", figures)
    known = "not measured" if floor is None else f"{floor:.2e} nats"
    lags = f"{min(stale)} to {max(stale)}" if len(stale) > 1 else f"{min(stale)}"
    return Diagnosis(
        "staleness",
        f"k3 is {k3:.2e} nats a token, budget {limits.budget_k3_nats:.2e}, with tokens of lag {lags}; at lag 0 it is "
        f"{known}: lower the lead or the learning rate",
        figures,
    )


def _unsynced(engines: Sequence[EngineFigures], limits: DiagnosisLimits) -> tuple[EngineFigures, str] | None:
    """The engine that does not serve the weights it says, and how that is known."""
    for engine in engines:
        found = engine.probe_difference_nats
        if found is not None and not found <= limits.probe_nats:
            return engine, (
                f"engine {engine.engine} differs by {found:.2e} nats from the probe of version {engine.version}, "
                f"limit {limits.probe_nats:.2e}"
            )
    measured = [engine for engine in engines if engine.floor.tokens >= limits.fewest_tokens]
    for engine in measured:
        others = [other.floor.k3 for other in measured if other is not engine]
        if not others or not _exceeds(engine.floor, limits.floor_k3_nats, limits):
            continue
        if engine.floor.k3 > limits.outlier_ratio * max(others):
            return engine, (
                f"engine {engine.engine} has k3 {engine.floor.k3:.2e} nats a token at lag 0, the others at most "
                f"{max(others):.2e}: its weights are not those of version {engine.version}"
            )
    return None


def _exceeds(found: DivergenceSummary, limit: float, limits: DiagnosisLimits) -> bool:
    if found.tokens < limits.fewest_tokens:
        return False
    return not found.k3 - limits.certainty * found.k3_error <= limit


def _figures(engines: Sequence[EngineFigures], by_lag: Mapping[int, DivergenceSummary]) -> dict[str, float]:
    tokens = sum(found.tokens for found in by_lag.values())
    figures = {"tokens": float(tokens), "growth_nats_per_version": growth(by_lag)}
    if tokens:
        figures["k3_nats"] = sum(found.tokens * found.k3 for found in by_lag.values()) / tokens
    if 0 in by_lag and by_lag[0].tokens:
        figures["floor_k3_nats"] = by_lag[0].k3
        figures["floor_k3_error_nats"] = by_lag[0].k3_error
    stale = [lag for lag, found in by_lag.items() if found.tokens]
    if stale:
        figures["lag_max"] = float(max(stale))
    probes = [engine.probe_difference_nats for engine in engines if engine.probe_difference_nats is not None]
    if probes:
        figures["probe_difference_max_nats"] = max(probes)
    return figures
