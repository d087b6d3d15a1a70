"""Which trajectories are trained on, and with what weight: by measured divergence; age is only a hard stop.

    no number ─▶ drop     too old ─▶ drop     k3 or effective sample size beyond the drop limit ─▶ drop
    beyond the down-weight limit ─▶ down-weight     else ─▶ keep

A policy is a value, and every verdict carries its reason. Advantages come from all valid members of a group, before
admission: admission changes weights alone, so a group's baseline does not depend on who is admitted. A group with
fewer than two admitted members teaches nothing about their difference and is given up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from driftline.measured import DivergenceSummary, Reason, Verdict

FEWEST_ADMITTED_MEMBERS = 2


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """Limits of what is admitted; None does not limit."""

    max_lag_versions: int
    """Oldest token of a trajectory that may still be trained on."""
    down_weight_k3_nats: float | None = None
    """From here on a trajectory weighs limit / k3."""
    drop_k3_nats: float | None = None
    down_weight_ess_fraction: float | None = None
    """Below it a trajectory weighs fraction / limit."""
    drop_ess_fraction: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits that contradict one another."""
        k3, drop_k3 = self.down_weight_k3_nats, self.drop_k3_nats
        if k3 is not None and (k3 <= 0 or (drop_k3 is not None and drop_k3 < k3)):
            raise ValueError("down_weight_k3_nats must be positive and at most drop_k3_nats")
        ess, drop_ess = self.down_weight_ess_fraction, self.drop_ess_fraction
        if ess is not None and (not 0 < ess <= 1 or (drop_ess is not None and drop_ess > ess)):
            raise ValueError("down_weight_ess_fraction must lie in (0, 1] and be at least drop_ess_fraction")

    @property
    def limits_divergence(self) -> bool:
        """Whether any verdict depends on what was measured, so that there is reason to measure."""
        limits = (
            self.down_weight_k3_nats,
            self.drop_k3_nats,
            self.down_weight_ess_fraction,
            self.drop_ess_fraction,
        )
        return any(limit is not None for limit in limits)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member of a group, as far as admission looks at it."""

    valid: bool
    """Whether it counts in its group's statistics."""
    lag_max: int
    """Versions between its oldest sampled token and the version trained from."""
    divergence: DivergenceSummary | None
    """Of raw weights over its sampled tokens; None where a log-probability is no number."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What becomes of one member."""

    verdict: Verdict
    weight: float
    """In [0, 1]; its advantage is multiplied by it. 0 exactly when dropped."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class GroupAdmission:
    """What becomes of a group."""

    members: tuple[Admission, ...]
    """In the group's order. Of a group that is given up, what each member would have been."""
    given_up: bool
    """Fewer than two members are admitted."""

    @property
    def weights(self) -> tuple[float, ...]:
        """What each member's advantage is multiplied by; zeros for a group that is given up."""
        return tuple(0.0 if self.given_up else member.weight for member in self.members)


def admit(candidate: Candidate, policy: AdmissionPolicy) -> Admission:
    """Decide about one member."""
    if not candidate.valid:
        return Admission("drop", 0.0, "invalid")
    if candidate.divergence is None or not math.isfinite(candidate.divergence.k3):
        return Admission("drop", 0.0, "not_finite")
    if candidate.lag_max > policy.max_lag_versions:
        return Admission("drop", 0.0, "age")
    k3, ess = candidate.divergence.k3, candidate.divergence.ess_fraction
    if policy.drop_k3_nats is not None and k3 > policy.drop_k3_nats:
        return Admission("drop", 0.0, "k3")
    if policy.drop_ess_fraction is not None and ess < policy.drop_ess_fraction:
        return Admission("drop", 0.0, "ess")
    by_k3 = 1.0 if policy.down_weight_k3_nats is None else policy.down_weight_k3_nats / max(k3, 1e-300)
    by_ess = 1.0 if policy.down_weight_ess_fraction is None else ess / policy.down_weight_ess_fraction
    weight = min(1.0, by_k3, by_ess)
    if weight == 1.0:
        return Admission("keep", 1.0, "")
    return Admission("down_weight", weight, "k3" if by_k3 <= by_ess else "ess")


def admit_group(candidates: Sequence[Candidate], policy: AdmissionPolicy) -> GroupAdmission:
    """Decide about all members of a group."""
    members = tuple(admit(candidate, policy) for candidate in candidates)
    admitted = sum(member.weight > 0 for member in members)
    return GroupAdmission(members, admitted < FEWEST_ADMITTED_MEMBERS)
