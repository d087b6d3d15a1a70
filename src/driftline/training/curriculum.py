"""Which tasks the next groups should play: those that the policy solves at times. Pure.

A group teaches by the variance of its rewards, p (1 - p) where its members succeed with probability p. Nothing is
learned of a task that is always solved, or never (learnability: Tzannetos et al. 2023, Rutherford et al. 2024). A
stratum of the task set (`driftline.rollout.strata`) has its p from the groups of the last steps, the older the
less: so one that was not played for a while is expected to be anywhere again, and is looked at now and then.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from driftline.records import GroupUse, StepRecord, TaskSampling

RECENT_STEPS = 32
KEPT_SHARE = 0.8
"""What an episode counts one step later. After `RECENT_STEPS` it is less than a thousandth."""
PRIOR_EPISODES = 1.0
"""Of each outcome, before anything is known of a stratum."""
SHARPNESS = 2.0
"""Power of the learnability: many strata that teach little shall not together outweigh the few that teach."""
DECIMALS = 5
MOST_KEPT = 16
"""Samplings that HEAD names at most. Groups older than all of them have been claimed, and a claim names its task."""


def weight(solved: float, attempts: float) -> float:
    """How much is learned from a task, in (0, 1], if of `attempts` episodes of its stratum `solved` succeeded."""
    share = (solved + PRIOR_EPISODES) / (attempts + 2 * PRIOR_EPISODES)
    return max(10.0**-DECIMALS, round((4 * share * (1 - share)) ** SHARPNESS, DECIMALS))


def task_sampling(records: Sequence[StepRecord], first: int) -> TaskSampling:
    """How groups sample their tasks from group number `first` on.

    Args:
        records: Of the run's steps, in order, up to the one that is about to be committed.
        first: Group number.
    """
    attempts, solved = defaultdict[str, float](float), defaultdict[str, float](float)
    for age, record in enumerate(reversed(records[-RECENT_STEPS:])):
        for use in record.groups:
            attempts[use.stratum] += KEPT_SHARE**age * use.valid_members
            solved[use.stratum] += KEPT_SHARE**age * use.valid_members * use.success_mean
    weights = {stratum: weight(solved[stratum], attempts[stratum]) for stratum in sorted(attempts)}
    return TaskSampling(first, weights, weight(0.0, 0.0))


def taken_up(samplings: Sequence[TaskSampling], new: TaskSampling) -> tuple[TaskSampling, ...]:
    """HEAD's samplings with a new one, which replaces one that no group was admitted by; the oldest are dropped."""
    return (*(one for one in samplings if one.first < new.first), new)[-MOST_KEPT:]


def effective_strata(uses: Sequence[GroupUse]) -> float:
    """Of how many strata a batch is, as the exponential of the entropy of its groups over them; 0 of no groups."""
    counts = Counter(use.stratum for use in uses)
    return math.exp(-sum(n / len(uses) * math.log(n / len(uses)) for n in counts.values())) if uses else 0.0
