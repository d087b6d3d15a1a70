"""Whether what is trained on is as long, and took as long, as what is generated. Pure; from step records alone.

A pipeline that leaves out what comes late trains on short and quick episodes, and on the tasks that give them, and no
error says so. Compared are all members of used and given-up groups (*generated*) with those that entered a step, by
their admission weight (*trained*): their sampled tokens, turns and seconds,

- by environment;
- within tasks: each value relative to its task's mean, so that what differs between tasks plays no part;
- between tasks: the share of the slowest quarter of the tasks that is trained on, against that of the others;
- task by task: those that were generated again and again and never trained on.

Values are compared as logarithms (of 1 + x), since lengths have long tails. A difference is a *bias* where trained
ones are shorter by at least `SMALLEST_DIFFERENCE` standard deviations and by more than `Z` standard errors (Welch),
with groups as observations, since the members of one share their task and often their fate; and where there are
`FEWEST_GROUPS` groups on each side.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from driftline.records import EpisodeCounts, MemberUse, StepRecord
from driftline.tracking.samples import deviation, mean, weighted_mean, welch

SMALLEST_DIFFERENCE = 0.1
"""In standard deviations of what was generated; below it, a difference harms nobody."""
SMALLEST_SHARE = 0.05
"""Difference in the share trained on, between slow tasks and others."""
Z = 3.0
FEWEST_GROUPS = 10
FEWEST_STARVED = 3
"""Groups of a task of which none was trained on, before the task is called starved."""
QUANTITIES = ("tokens", "turns", "seconds")
GROUP = "group"
"""Reason of members that were admitted, of a group that was given up."""
LOOK = "see `status` and `reason` in the trajectories"
REMEDIES = {
    "age": "raise overlap.max_lag_versions or lower the lead (overlap.lead_groups)",
    "k3": "raise admission.drop_k3_nats or lower the lead (overlap.lead_groups)",
    "ess": "lower admission.drop_ess_fraction or lower the lead (overlap.lead_groups)",
    "not_finite": "their log-probabilities are no numbers: lower training.learning_rate",
    GROUP: "too few others of their groups remained: raise rollout.group_size",
}
"""What helps, by the reason for which members were left out; of `invalid`, see `_remedy_of_failures`."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One generated member."""

    group: int
    task_id: str
    environment: str
    weight: float
    """In [0, 1]; 0 for what was not trained on."""
    tokens: float
    turns: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of trained members against generated ones."""

    trained: int
    generated: int
    trained_mean: float
    generated_mean: float
    difference: float
    """Standardised; negative where trained ones are shorter."""
    z: float
    """Standard errors between trained ones and those left out; 0 where there are too few of either."""

    @property
    def biased(self) -> bool:
        """Whether trained ones are systematically shorter."""
        return self.difference <= -SMALLEST_DIFFERENCE and self.z <= -Z


@dataclass(frozen=True, slots=True)
class SlowTasks:
    """The slowest quarter of the tasks against the others, by the share of members that is trained on."""

    tasks: int
    slow_share: float
    other_share: float
    z: float

    @property
    def starved(self) -> bool:
        """Whether slow tasks are left out more often."""
        return self.slow_share - self.other_share <= -SMALLEST_SHARE and self.z <= -Z


@dataclass(frozen=True, slots=True)
class Bias:
    """What was trained on, against what was generated."""

    by_environment: Mapping[str, Mapping[str, Comparison]]
    """Environment -> quantity -> comparison."""
    within_tasks: Mapping[str, Comparison]
    slow_tasks: SlowTasks | None
    """None where fewer than four tasks were played."""
    starved_tasks: tuple[str, ...]
    left_out: Mapping[str, int]
    """Members that were not trained on, by reason."""
    failed: EpisodeCounts
    """Of all steps: what may be behind the reason `invalid`."""

    @property
    def warnings(self) -> list[str]:
        """What is wrong, in sentences with figures; empty where nothing is."""
        found = [
            f"trained episodes of {where} have fewer {name} than generated ones: {_figures(one)}"
            for where, comparisons in [*self.by_environment.items(), ("the same tasks", self.within_tasks)]
            for name, one in comparisons.items()
            if one.biased
        ]
        slow = self.slow_tasks
        if slow is not None and slow.starved:
            found.append(
                f"slow tasks are trained on less: {slow.slow_share:.2f} of the members of the slowest quarter of "
                f"{slow.tasks} tasks, {slow.other_share:.2f} of the others"
            )
        if self.starved_tasks:
            some = ", ".join(self.starved_tasks[:5])
            tasks = "1 task is" if len(self.starved_tasks) == 1 else f"{len(self.starved_tasks)} tasks are"
            found.append(f"{tasks} generated and never trained on: {some}")
        if found:
            found.append("left out: " + "; ".join(self._reasons()))
        return found

    def _reasons(self) -> list[str]:
        """Each reason with its count and what helps."""
        remedies = REMEDIES | {"invalid": _remedy_of_failures(self.failed)}
        return [f"{count} x {reason} ({remedies[reason]})" for reason, count in self.left_out.items()]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "warnings": self.warnings,
            "by_environment": {
                name: {quantity: asdict(one) for quantity, one in comparisons.items()}
                for name, comparisons in self.by_environment.items()
            },
            "within_tasks": {quantity: asdict(one) for quantity, one in self.within_tasks.items()},
            "slow_tasks": None if self.slow_tasks is None else asdict(self.slow_tasks),
            "starved_tasks": list(self.starved_tasks),
            "left_out": dict(self.left_out),
        }


def find_bias(records: Iterable[StepRecord]) -> Bias | None:
    """Compare what a run has trained on with what it has generated.

    Args:
        records: Its committed steps; those without members' uses, of before there was admission, are passed over.

    Returns:
        None where no member is on record.
    """
    found = list(records)
    episodes = _episodes(found)
    if not episodes:
        return None
    environments = sorted({episode.environment for episode in episodes})
    return Bias(
        by_environment={
            name: _compare_all([episode for episode in episodes if episode.environment == name], _logarithm)
            for name in environments
        },
        within_tasks=_compare_all(*_relative_to_task(episodes)),
        slow_tasks=_slow_tasks(episodes),
        starved_tasks=_starved(episodes),
        left_out=_left_out(found),
        failed=sum((counts for record in found for counts in record.episodes.values()), EpisodeCounts()),
    )


def _episodes(records: Sequence[StepRecord]) -> list[Episode]:
    return [
        Episode(
            use.group,
            use.task_id,
            use.environment,
            member.weight,
            member.sampled_tokens,
            member.turns,
            member.seconds,
        )
        for record in records
        for use in [*record.groups, *record.give_ups]
        for member in use.uses
        if member.sampled_tokens
    ]


def _left_out(records: Sequence[StepRecord]) -> dict[str, int]:
    counts = Counter(
        _reason(member)
        for record in records
        for use in [*record.groups, *record.give_ups]
        for member in use.uses
        if member.sampled_tokens and member.weight == 0.0
    )
    return dict(counts.most_common())


def _reason(member: MemberUse) -> str:
    return member.reason if member.verdict == "drop" else GROUP


def _remedy_of_failures(failed: EpisodeCounts) -> str:
    if not failed.timeouts:
        return f"episodes that failed or were cut off: {LOOK}"
    others = f"; of the others, {LOOK}" if failed.failures > failed.timeouts else ""
    return (
        f"{failed.timeouts} of {failed.failures} failed episodes ran out of time: raise "
        "environment.episode_deadline_s or environment.step_deadline_s, or set environment.at_deadline to judge"
        + others
    )


def _compare_all(episodes: Sequence[Episode], value: Callable[[Episode, str], float]) -> dict[str, Comparison]:
    return {name: _compare(episodes, name, value) for name in QUANTITIES} if episodes else {}


def _compare(episodes: Sequence[Episode], name: str, value: Callable[[Episode, str], float]) -> Comparison:
    """Compare one quantity; `value` is what is compared, of an episode's quantity."""
    values = [value(episode, name) for episode in episodes]
    weights = [episode.weight for episode in episodes]
    trained = [episode for episode in episodes if episode.weight > 0]
    spread = deviation(values)
    difference = weighted_mean(values, weights) - mean(values) if trained else 0.0
    sides = _by_group(episodes, values)
    return Comparison(
        trained=len(trained),
        generated=len(episodes),
        trained_mean=weighted_mean([getattr(episode, name) for episode in episodes], weights),
        generated_mean=mean([getattr(episode, name) for episode in episodes]),
        difference=difference / spread if spread > 0 else 0.0,
        z=welch(*sides, FEWEST_GROUPS),
    )


def _by_group(episodes: Sequence[Episode], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means of each group's trained members, and of those left out."""
    sides: dict[bool, dict[int, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for episode, value in zip(episodes, values, strict=True):
        sides[episode.weight > 0][episode.group].append(value)
    return [mean(own) for own in sides[True].values()], [mean(own) for own in sides[False].values()]


def _logarithm(episode: Episode, name: str) -> float:
    return math.log1p(max(0.0, getattr(episode, name)))


def _relative_to_task(episodes: Sequence[Episode]) -> tuple[list[Episode], Callable[[Episode, str], float]]:
    """Episodes of tasks with trained and left-out ones, and their values relative to the task's mean."""
    tasks: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        tasks[episode.task_id].append(episode)
    mixed = {task: own for task, own in tasks.items() if len({episode.weight > 0 for episode in own}) == 2}
    means = {
        (task, name): mean([_logarithm(episode, name) for episode in own])
        for task, own in mixed.items()
        for name in QUANTITIES
    }
    return [
        episode for own in mixed.values() for episode in own
    ], lambda episode, name: _logarithm(episode, name) - means[episode.task_id, name]


def _slow_tasks(episodes: Sequence[Episode]) -> SlowTasks | None:
    seconds: dict[str, list[float]] = defaultdict(list)
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for episode in episodes:
        seconds[episode.task_id].append(_logarithm(episode, "seconds"))
        groups[episode.task_id, episode.group].append(float(episode.weight > 0))
    if len(seconds) < 4:
        return None
    ordered = sorted(seconds, key=lambda task: -mean(seconds[task]))
    slow = set(ordered[: len(ordered) // 4])
    shares = {
        side: [mean(own) for (task, _), own in groups.items() if (task in slow) == side] for side in (True, False)
    }
    return SlowTasks(
        len(seconds), mean(shares[True]), mean(shares[False]), welch(shares[True], shares[False], FEWEST_GROUPS)
    )


def _starved(episodes: Sequence[Episode]) -> tuple[str, ...]:
    groups: dict[str, set[int]] = defaultdict(set)
    trained = {episode.task_id for episode in episodes if episode.weight > 0}
    for episode in episodes:
        groups[episode.task_id].add(episode.group)
    return tuple(sorted(task for task, own in groups.items() if task not in trained and len(own) >= FEWEST_STARVED))


def _figures(one: Comparison) -> str:
    return (
        f"{one.trained_mean:.3g} against {one.generated_mean:.3g} on average "
        f"({one.difference:.2f} standard deviations, z {one.z:.1f})"
    )
