"""Which tasks the next groups should play: those of strata that the policy solves at times. Pure.

How often a stratum of the task set is solved is known from the groups of the last steps, the older the less: one that
was not played for a while is expected to be anywhere again, and is looked at now and then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from driftline.records import GroupUse, StepRecord, TaskSampling
from driftline.refresh import learnability
from driftline.refresh.learnability import Counts

RECENT_STEPS = 32
KEPT_SHARE = 0.8
"""What an episode counts one step later. After `RECENT_STEPS` it is less than a thousandth."""
MOST_KEPT = 16
"""Samplings that HEAD names at most. Groups older than all of them have been claimed, and a claim names its task."""


def task_sampling(records: Sequence[StepRecord], first: int, members: int) -> TaskSampling:
    """How groups sample their tasks from group number `first` on.

    Args:
        records: Of the run's steps, in order, up to the one that is about to be committed.
        first: Group number.
        members: Of a group.
    """
    seen: dict[str, Counts] = {}
    for age, record in enumerate(reversed(records[-RECENT_STEPS:])):
        for use in record.groups:
            attempts, solved = seen.get(use.stratum, (0.0, 0.0))
            counted = KEPT_SHARE**age * use.valid_members
            seen[use.stratum] = (attempts + counted, solved + counted * use.success_mean)
    return TaskSampling(first, learnability.of_strata(seen, members), learnability.learnability(0.5, members))


def taken_up(samplings: Sequence[TaskSampling], new: TaskSampling) -> tuple[TaskSampling, ...]:
    """HEAD's samplings with a new one, which replaces one that no group was admitted by; the oldest are dropped."""
    return (*(one for one in samplings if one.first < new.first), new)[-MOST_KEPT:]


def effective_strata(uses: Sequence[GroupUse]) -> float:
    """Of how many strata a batch is, as the exponential of the entropy of its groups over them; 0 of no groups."""
    counts = Counter(use.stratum for use in uses)
    return math.exp(-sum(n / len(uses) * math.log(n / len(uses)) for n in counts.values())) if uses else 0.0
