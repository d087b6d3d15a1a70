"""How far generation may run ahead of training: the overlap controller, a pure function of what was measured.

            k3 of the batch
    over     ───────────────  budget            cut the lead back, to where k3 should be `target`
    hold                                        the band in which nothing is done
    under    ───────────────  deepen_below      deepen the lead, by at most `step_groups`

A batch is generated under the lead of some steps ago, so a change shows only after the groups already started are
used up: until then the controller holds still (its dead time). After it, the mean over the steps since counts, so
that one noisy batch moves nothing. One batch far above the budget is reason enough to cut at once, but not a second
time before the first cut has shown. A lead that generation does not use is not deepened, or it would be cut back
step after step when generation gets faster. A lead that was cut lately is approached by halves: where one group
more or less jumps over the band, the controller stays below it.

All it knows it reads from the history, which step records hold: a restarted trainer decides as the first one would.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal


@dataclass(frozen=True, slots=True)
class OverlapMeasurement:
    """What one committed step tells the controller."""

    lead_groups: int
    """The lead in HEAD while the step's batch was awaited."""
    k3_nats: float
    """Of the batch, before the step, a token."""
    floor_k3_nats: float
    """The part of it that no lead takes away: engine against trainer, at lag 0; 0 where unknown."""
    lag_versions: float
    """Mean lag of the batch's sampled tokens."""


@dataclass(frozen=True, slots=True)
class DivergenceBudget:
    """How much divergence a run spends on overlap; shares are of the budget."""

    k3_nats: float
    """Most k3 a token that a batch should have."""
    target: float = 0.85
    """Where a change of the lead aims."""
    deepen_below: float = 0.7
    """Share below which the lead is deepened; between it and 1 the lead holds."""
    alarm: float = 2.0
    """Share at which one batch alone makes the lead be cut."""
    window_steps: int = 4
    """Steps at an unchanged lead, after the dead time, whose mean is judged."""

    memory_steps: int = 40
    """Steps for which a lead that was cut bounds what is tried next."""

    def __post_init__(self) -> None:
        """Refuse a budget without a band."""
        if not (self.k3_nats > 0 and 0 < self.deepen_below < self.target <= 1 < self.alarm and self.window_steps > 0):
            raise ValueError("a budget needs k3_nats > 0, 0 < deepen_below < target <= 1 < alarm, window_steps > 0")


@dataclass(frozen=True, slots=True)
class LeadLimits:
    """Between which leads the controller moves, and how fast upward."""

    lowest_groups: int
    highest_groups: int
    """At most the hard age limit in versions times `groups_per_step`."""
    groups_per_step: int
    step_groups: int
    """Most groups that one change deepens the lead by."""


@dataclass(frozen=True, slots=True)
class LeadDecision:
    """The next lead, and why."""

    lead_groups: int
    why: Literal[
        "limits", "waiting", "within budget", "below budget", "lead unused", "cut before", "over budget", "alarm"
    ]


def next_lead(
    history: Sequence[OverlapMeasurement], lead_groups: int, budget: DivergenceBudget, limits: LeadLimits
) -> LeadDecision:
    """Decide the lead of the next step.

    Args:
        history: Committed steps of the run, oldest first.
        lead_groups: The lead in HEAD.
        budget: The divergence budget.
        limits: The hard limits.
    """
    allowed = _within(lead_groups, limits)
    if allowed != lead_groups:
        return LeadDecision(allowed, "limits")
    settled, waited = _at_this_lead(history, lead_groups, limits.groups_per_step)
    changed_down = waited < len(history) and history[-waited - 1].lead_groups > lead_groups
    alarmed = bool(history) and not history[-1].k3_nats <= budget.alarm * budget.k3_nats
    if alarmed and lead_groups > limits.lowest_groups and (settled or not changed_down):
        return LeadDecision(_within(_cut(history[-1:], lead_groups, budget), limits), "alarm")
    if len(settled) < budget.window_steps:
        return LeadDecision(lead_groups, "waiting")
    window = settled[-budget.window_steps :]
    k3 = _mean([one.k3_nats for one in window])
    if not k3 <= budget.k3_nats:
        return LeadDecision(_within(_cut(window, lead_groups, budget), limits), "over budget")
    if k3 >= budget.deepen_below * budget.k3_nats or lead_groups == limits.highest_groups:
        return LeadDecision(lead_groups, "within budget")
    if 2 * effective_lead(window, limits.groups_per_step) < lead_groups - limits.groups_per_step:
        return LeadDecision(lead_groups, "lead unused")
    deeper = min(_aim(window, lead_groups, budget, limits), _below_cuts(history, lead_groups, budget.memory_steps))
    if deeper <= lead_groups:
        return LeadDecision(lead_groups, "cut before")
    return LeadDecision(_within(deeper, limits), "below budget")


def effective_lead(history: Sequence[OverlapMeasurement], groups_per_step: int) -> float:
    """The mean lead in groups that the tokens of these steps really had; 0 without steps."""
    return _mean([one.lag_versions for one in history]) * groups_per_step


def dead_time_steps(before_groups: int, after_groups: int, groups_per_step: int) -> int:
    """Steps after a change of the lead whose batches may hold groups that were started under the old one."""
    return 1 + math.ceil(max(before_groups, after_groups) / groups_per_step)


def _at_this_lead(
    history: Sequence[OverlapMeasurement], lead_groups: int, groups_per_step: int
) -> tuple[Sequence[OverlapMeasurement], int]:
    """(the last steps generated wholly under this lead, how many steps were committed under it)."""
    waited = 0
    while waited < len(history) and history[-waited - 1].lead_groups == lead_groups:
        waited += 1
    before = history[-waited - 1].lead_groups if waited < len(history) else 0
    dead = dead_time_steps(before, lead_groups, groups_per_step)
    return history[len(history) - max(0, waited - dead) :], waited


def _cut(window: Sequence[OverlapMeasurement], lead_groups: int, budget: DivergenceBudget) -> int:
    """A smaller lead: as if k3 grew in proportion to it, at least one group less, at least the half."""
    share = _share_of_target(window, budget)
    return min(lead_groups - 1, math.floor(lead_groups * max(0.5, share)))


def _aim(window: Sequence[OverlapMeasurement], lead_groups: int, budget: DivergenceBudget, limits: LeadLimits) -> int:
    """A larger lead, carefully: as if k3 grew with its square, as divergence does with distance."""
    share = _share_of_target(window, budget)
    furthest = lead_groups + limits.step_groups
    if lead_groups == 0:  # Nothing is known of how k3 grows.
        return max(1, limits.step_groups // 4)
    if math.isinf(share):
        return furthest
    return min(furthest, max(lead_groups + 1, math.floor(lead_groups * math.sqrt(share))))


def _below_cuts(history: Sequence[OverlapMeasurement], lead_groups: int, memory_steps: int) -> int:
    """Half way to the lowest lead that was lately cut; far above everything where none was."""
    recent = history[-memory_steps - 1 :]
    cut = [a.lead_groups for a, b in pairwise(recent) if b.lead_groups < a.lead_groups]
    if history and history[-1].lead_groups > lead_groups:
        cut.append(history[-1].lead_groups)
    above = [lead for lead in cut if lead > lead_groups]
    return (lead_groups + min(above)) // 2 if above else sys.maxsize


def _share_of_target(window: Sequence[OverlapMeasurement], budget: DivergenceBudget) -> float:
    """The target over what was measured, both above the floor; 0 for what is no number, infinite for nothing."""
    floor = min(_mean([one.floor_k3_nats for one in window]), budget.target * budget.k3_nats)
    excess = _mean([one.k3_nats for one in window]) - floor
    if math.isnan(excess) or math.isinf(excess):
        return 0.0
    return (budget.target * budget.k3_nats - floor) / excess if excess > 0 else math.inf


def _within(lead_groups: int, limits: LeadLimits) -> int:
    return max(limits.lowest_groups, min(limits.highest_groups, lead_groups))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
