"""A run as the overlap controller sees it: groups start as early as the lead allows, and age until trained."""

from __future__ import annotations

from collections.abc import Callable

from driftline.divergence.overlap import (
    DivergenceBudget,
    LeadDecision,
    LeadLimits,
    OverlapMeasurement,
    next_lead,
)

K3OfLag = Callable[[float, int], float]
"""(mean lag of the batch in versions, step) -> k3 in nats."""


class Run:
    """Steps one by one; `history` and `decisions` have one entry a step."""

    def __init__(
        self,
        k3: K3OfLag,
        budget: DivergenceBudget,
        limits: LeadLimits,
        *,
        lead: int = 0,
        floor: float = 0.0,
        groups_a_step: float = float("inf"),
    ) -> None:
        """`groups_a_step` is how many groups generation manages while the trainer takes a step."""
        self._k3, self._budget, self._limits, self._floor = k3, budget, limits, floor
        self._pace = groups_a_step
        self._started: list[int] = []
        self.lead = lead
        self.history: list[OverlapMeasurement] = []
        self.decisions: list[LeadDecision] = []

    def take(self, steps: int) -> list[OverlapMeasurement]:
        for _ in range(steps):
            self._take_step()
        return self.history[-steps:]

    def _take_step(self) -> None:
        step, size = len(self.history), self._limits.groups_per_step
        allowed = (step + 1) * size + self.lead
        able = max((step + 1) * size, len(self._started) + self._pace)
        while len(self._started) < min(allowed, able):
            self._started.append(step)
        batch = self._started[step * size : (step + 1) * size]
        lag = sum(step - start for start in batch) / size
        self.history.append(OverlapMeasurement(self.lead, self._k3(lag, step), self._floor, lag))
        self.decisions.append(next_lead(self.history, self.lead, self._budget, self._limits))
        self.lead = self.decisions[-1].lead_groups


def steady_k3(k3: K3OfLag, lead: int, limits: LeadLimits) -> float:
    """The k3 that a fixed lead comes to: the mean lag is the lead, in batches."""
    return k3(lead / limits.groups_per_step, 0)
