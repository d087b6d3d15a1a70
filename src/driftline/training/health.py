"""How healthy each environment of a run is: what share of its episodes failed for reasons of infrastructure. Pure.

Every step record carries the counts of its batch, so a restarted trainer knows what the one before it knew.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from driftline.records import EpisodeCounts, GiveUp, Group, StepRecord
from driftline.tracking import metrics
from driftline.training.batching import INVALID


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
    """Follows the environments of a run over the last episodes of each. A quarantine lasts as long as the run."""

    def __init__(self, most_failures: float, episodes: int, records: Iterable[StepRecord] = ()) -> None:
        """Begin after the committed steps of the run.

        Args:
            most_failures: Share of failures beyond which an environment is quarantined.
            episodes: Last episodes that are looked at; of fewer, nothing is concluded.
            records: All committed steps, in order.
        """
        self._most_failures = most_failures
        self._episodes = episodes
        self._steps: dict[str, deque[EpisodeCounts]] = {}
        self._quarantined: dict[str, EpisodeCounts] = {}
        for record in records:
            self.see(record.episodes)

    def see(self, counts: Mapping[str, EpisodeCounts]) -> None:
        """Take in a step's counts, by environment."""
        for environment, found in counts.items():
            steps = self._steps.setdefault(environment, deque())
            steps.append(found)
            while sum(step.episodes for step in steps) - steps[0].episodes >= self._episodes:
                steps.popleft()
            now = self.of(environment)
            if now.episodes >= self._episodes and now.failure_share > self._most_failures:
                self._quarantined.setdefault(environment, now)

    def of(self, environment: str) -> EpisodeCounts:
        """The last episodes of an environment."""
        return sum(self._steps.get(environment, ()), EpisodeCounts())

    @property
    def quarantined(self) -> Mapping[str, EpisodeCounts]:
        """Environments that were beyond the limit after some step, with their counts then.

        Groups that were admitted before, and happen to succeed, do not bring one back.
        """
        return dict(sorted(self._quarantined.items()))

    @property
    def values(self) -> dict[str, float]:
        """Of the worst environment and, where there are several, of each, by the names of the table of metrics."""
        known = {environment: self.of(environment) for environment in sorted(self._steps)}
        worst = {
            metrics.ENVIRONMENT_FAILURE_SHARE: max((counts.failure_share for counts in known.values()), default=0.0),
            metrics.ENVIRONMENT_TIMEOUT_SHARE: max((counts.timeout_share for counts in known.values()), default=0.0),
            metrics.ENVIRONMENTS_QUARANTINED: float(len(self._quarantined)),
        }
        if len(known) < 2:
            return worst
        failed, late = metrics.ENVIRONMENT_FAILURE_SHARE_OF, metrics.ENVIRONMENT_TIMEOUT_SHARE_OF
        return {
            **worst,
            **{metrics.of_environment(failed, name): counts.failure_share for name, counts in known.items()},
            **{metrics.of_environment(late, name): counts.timeout_share for name, counts in known.items()},
        }
