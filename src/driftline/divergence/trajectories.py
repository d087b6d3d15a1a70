"""The divergence of one trajectory, of several, and of any division of them: by lag, by environment, by version."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from driftline.divergence.estimators import (
    SUMS,
    DivergenceSummary,
    quantiles,
    summarise,
    token_terms,
)
from driftline.errors import LogprobsNotFinite

QUANTILES = (0.5, 0.95, 0.99)

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """The sampled tokens of a trajectory, scored by the behaviour and by the current policy."""

    name: str
    """Its id, for messages: `group 12 member 3`."""
    environment: str
    behaviour_T: Tensor
    """Log-probabilities as sampled, `[T]`, nats."""
    current_T: Tensor
    """Log-probabilities under the current policy at the same temperature, `[T]`, nats."""
    lag_T: Tensor
    """int64: versions between the two policies, `[T]`."""


@dataclass(frozen=True, slots=True)
class TrajectoryDivergence:
    """How far a trajectory's policy is from the current one."""

    name: str
    environment: str
    summary: DivergenceSummary
    by_lag: Mapping[int, Tensor]
    """Lag -> sums `[SUMS]` of its tokens."""
    log_ratio_quantiles: tuple[float, ...]
    """Of |log ratio| at `QUANTILES`, nats."""

    @property
    def lag_max(self) -> int:
        """Largest lag of its tokens, in versions."""
        return max(self.by_lag, default=0)

    @property
    def sums(self) -> Tensor:
        """Sums over all of its tokens, `[SUMS]`."""
        return _total(self.by_lag.values())


def measure(trajectory: ScoredTrajectory) -> TrajectoryDivergence:
    """Measure one trajectory.

    Raises:
        LogprobsNotFinite: A log-probability is NaN or infinite; the message names the trajectory.
    """
    require_finite(trajectory.name, trajectory.behaviour_T, trajectory.current_T)
    log_ratio_T = trajectory.current_T.detach().double() - trajectory.behaviour_T.double()
    terms = token_terms(log_ratio_T)
    lags = sorted({int(lag) for lag in trajectory.lag_T})
    return TrajectoryDivergence(
        name=trajectory.name,
        environment=trajectory.environment,
        summary=summarise(terms.sum(0)),
        by_lag={lag: terms[trajectory.lag_T == lag].sum(0) for lag in lags},
        log_ratio_quantiles=quantiles(log_ratio_T.abs(), QUANTILES),
    )


def measure_all(
    trajectories: Iterable[ScoredTrajectory],
) -> tuple[list[TrajectoryDivergence], dict[str, LogprobsNotFinite]]:
    """Measure trajectories one by one: what could be measured, and by name why the others could not."""
    measured: list[TrajectoryDivergence] = []
    failed: dict[str, LogprobsNotFinite] = {}
    for trajectory in trajectories:
        try:
            measured.append(measure(trajectory))
        except LogprobsNotFinite as error:
            failed[trajectory.name] = error
    return measured, failed


def require_finite(name: str, behaviour_T: Tensor, current_T: Tensor) -> None:
    """Refuse log-probabilities that are no numbers.

    Raises:
        LogprobsNotFinite: With the name, the policy and the first index at fault.
    """
    for policy, logprobs_T in (("behaviour", behaviour_T), ("current", current_T)):
        bad = (~torch.isfinite(logprobs_T)).nonzero()
        if bad.numel():
            index = int(bad[0])
            raise LogprobsNotFinite(
                f"{name}: the {policy} policy's log-probability of sampled token {index} is "
                f"{float(logprobs_T[index])}: the trajectory cannot be trained on. Look for overflow in that "
                "policy's forward pass, or for a token it masks"
            )


def of_all(measured: Iterable[TrajectoryDivergence]) -> DivergenceSummary:
    """The divergence of all tokens of some trajectories."""
    return summarise(_total(one.sums for one in measured))


def by_lag(measured: Iterable[TrajectoryDivergence]) -> dict[int, DivergenceSummary]:
    """The divergence of the tokens of each lag, in order."""
    parts = [(lag, sums) for one in measured for lag, sums in one.by_lag.items()]
    return _divided(parts)


def divided(
    measured: Sequence[TrajectoryDivergence], key: Callable[[TrajectoryDivergence], KeyT]
) -> dict[KeyT, DivergenceSummary]:
    """The divergence of trajectories by a key of theirs, such as the environment, in order of the keys' names."""
    return _divided([(key(one), one.sums) for one in measured])


def _divided(parts: Sequence[tuple[KeyT, Tensor]]) -> dict[KeyT, DivergenceSummary]:
    keys = sorted({key for key, _ in parts}, key=lambda key: key if isinstance(key, int) else str(key))  # pyright: ignore
    return {key: summarise(_total(sums for found, sums in parts if found == key)) for key in keys}


def _total(sums: Iterable[Tensor]) -> Tensor:
    return sum(sums, torch.zeros(SUMS, dtype=torch.float64))
