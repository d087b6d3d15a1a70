"""Which tasks the next groups should play: those of strata that the policy solves at times. Pure.

How often a stratum of the task set is solved is known from the groups of the last steps, the older the less: one that
was not played for a while is expected to be anywhere again, and is looked at now and then. What is learned is set
against what it costs: tokens, as many as the stratum's episodes had.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from driftline.records import GroupUse, StepRecord, TaskSampling
from driftline.refresh import learnability, strata
from driftline.refresh.learnability import Counts

RECENT_STEPS = 32
KEPT_SHARE = 0.8
"""What an episode counts one step later. After `RECENT_STEPS` it is less than a thousandth."""
DIGITS = 5
"""Of a weight, so that every machine comes to the same one."""
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
    tokens: dict[str, float] = {}
    for age, record in enumerate(reversed(records[-RECENT_STEPS:])):
        for use in record.groups:
            attempts, solved = seen.get(use.stratum, (0.0, 0.0))
            counted = KEPT_SHARE**age * use.valid_members
            seen[use.stratum] = (attempts + counted, solved + counted * use.success_mean)
            tokens[use.stratum] = tokens.get(use.stratum, 0.0) + KEPT_SHARE**age * use.sampled_tokens
    worth = learnability.of_strata(seen, members)
    lengths = relative_lengths(worth, {name: (counts[0], tokens[name]) for name, counts in seen.items()})
    weights = {name: float(f"{weight / lengths[name]:.{DIGITS}g}") for name, weight in worth.items()}
    return TaskSampling(first, weights, learnability.learnability(0.5, members))


def relative_lengths(wanted: Iterable[str], played: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Stratum -> tokens of an episode of it, over those of an episode of all that was played.

    Args:
        wanted: Strata. A level that was not played is as long as the nearest one that was; others are 1.
        played: Stratum -> episodes, and their sampled tokens.
    """
    known = {name: tokens / episodes for name, (episodes, tokens) in played.items() if episodes and tokens}
    if not known:
        return dict.fromkeys(wanted, 1.0)
    mean = math.fsum(tokens for _, tokens in played.values()) / math.fsum(episodes for episodes, _ in played.values())
    return {name: known.get(_nearest(name, known), mean) / mean for name in wanted}


def _nearest(stratum: str, known: Collection[str]) -> str:
    """The stratum itself, or the known level of its environment that is nearest to it, if there is one."""
    environment, level = strata.parts(stratum)
    if stratum in known or level is None:
        return stratum
    levels = [other for of, other in map(strata.parts, known) if of == environment and other is not None]
    if not levels:
        return stratum
    return strata.of_level(environment, min(levels, key=lambda other: (abs(other - level), other)))


def taken_up(samplings: Sequence[TaskSampling], new: TaskSampling) -> tuple[TaskSampling, ...]:
    """HEAD's samplings with a new one, which replaces one that no group was admitted by; the oldest are dropped."""
    return (*(one for one in samplings if one.first < new.first), new)[-MOST_KEPT:]


def effective_strata(uses: Sequence[GroupUse]) -> float:
    """Of how many strata a batch is, as the exponential of the entropy of its groups over them; 0 of no groups."""
    counts = Counter(use.stratum for use in uses)
    return math.exp(-sum(n / len(uses) * math.log(n / len(uses)) for n in counts.values())) if uses else 0.0
