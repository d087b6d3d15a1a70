"""How healthy each environment of a run is: what share of its episodes failed for reasons of infrastructure. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftline.records import GiveUp, Group
from driftline.tracking import metrics
from driftline.training.batching import INVALID


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


def counts_of(groups: Iterable[Group], give_ups: Iterable[GiveUp]) -> dict[str, EpisodeCounts]:
    """Environment -> counts over a batch, and over groups that were given up for too few valid members."""
    found: defaultdict[str, EpisodeCounts] = defaultdict(EpisodeCounts)
    for group in groups:
        for member in group.trajectories:
            if member.status in ("engine_error", "cancelled"):
                continue
            failed, late = member.status in ("env_error", "timeout"), member.status == "timeout"
            found[member.environment] += EpisodeCounts(1, int(failed), int(late))
    for give_up in give_ups:
        # Their members are not at hand; of what made the group fail, the reason tells the commonest.
        if give_up.reason.startswith(INVALID) and ("env_error" in give_up.reason or "timeout" in give_up.reason):
            members = max(1, len(give_up.uses))
            found[give_up.environment] += EpisodeCounts(members, members, members * ("timeout" in give_up.reason))
    return dict(sorted(found.items()))


class EnvironmentHealth:
    """Follows the environments of a run over the last episodes of each."""

    def __init__(self, most_failures: float, episodes: int) -> None:
        """Begin with nothing known.

        Args:
            most_failures: Share of failures beyond which an environment is quarantined.
            episodes: Last episodes that are looked at; of fewer, nothing is concluded.
        """
        self._most_failures = most_failures
        self._episodes = episodes
        self._steps: dict[str, deque[EpisodeCounts]] = {}

    def see(self, groups: Sequence[Group], give_ups: Sequence[GiveUp]) -> None:
        """Take in a batch, and what was given up beside it."""
        for environment, counts in counts_of(groups, give_ups).items():
            steps = self._steps.setdefault(environment, deque())
            steps.append(counts)
            while sum(step.episodes for step in steps) - steps[0].episodes >= self._episodes:
                steps.popleft()

    def of(self, environment: str) -> EpisodeCounts:
        """The last episodes of an environment."""
        return sum(self._steps.get(environment, ()), EpisodeCounts())

    @property
    def unhealthy(self) -> Mapping[str, EpisodeCounts]:
        """Environments beyond the limit, with their counts."""
        known = {environment: self.of(environment) for environment in self._steps}
        return {
            environment: counts
            for environment, counts in sorted(known.items())
            if counts.episodes >= self._episodes and counts.failure_share > self._most_failures
        }

    @property
    def values(self) -> dict[str, float]:
        """Of the worst environment, by the names of the table of metrics."""
        known = [self.of(environment) for environment in self._steps]
        return {
            metrics.ENVIRONMENT_FAILURE_SHARE: max((counts.failure_share for counts in known), default=0.0),
            metrics.ENVIRONMENT_TIMEOUT_SHARE: max((counts.timeout_share for counts in known), default=0.0),
            metrics.ENVIRONMENTS_QUARANTINED: float(len(self.unhealthy)),
        }
