"""What the episodes of each environment came to, as records carry it. Part of `records`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EpisodeCounts:
    """Episodes that ended by themselves or by their environment's fault; others say nothing of it."""

    episodes: int = 0
    failures: int = 0
    """The environment raised, or took too long."""
    timeouts: int = 0
    """Of these: took too long."""

    def __add__(self, other: EpisodeCounts) -> EpisodeCounts:
        return EpisodeCounts(
            self.episodes + other.episodes, self.failures + other.failures, self.timeouts + other.timeouts
        )

    @property
    def failure_share(self) -> float:
        """In [0, 1]; 0 of none."""
        return self.failures / self.episodes if self.episodes else 0.0

    @property
    def timeout_share(self) -> float:
        """In [0, 1]; 0 of none."""
        return self.timeouts / self.episodes if self.episodes else 0.0


@dataclass(frozen=True, slots=True)
class HeldOutOutcome:
    """What a policy version came to on the held-out tasks of one environment."""

    tasks: int
    episodes: int
    success: float | None
    """Share of valid episodes that succeeded, in [0, 1]; None where none was valid."""
    reward_mean: float | None
    invalid: int
    """Episodes without a reward (infrastructure failures), left out of the share."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Held-out success of one policy version, over the tasks of all environments."""

    version: int
    tasks: int
    episodes: int
    success: float
    """Share of valid episodes that succeeded, in [0, 1]."""
    reward_mean: float
    invalid: int
    """Episodes without a reward (infrastructure failures), left out of the share."""
    seconds: float
    by_environment: Mapping[str, HeldOutOutcome] = field(default_factory=dict[str, HeldOutOutcome])
    """Environment id -> the same of its tasks alone; empty in results of before this was told apart."""
