"""What rank 0 decides, as pure functions: which groups make the next batch, which are given up, when to stop.

finished group ──▶ judged    fewer than 2 valid members          ─▶ given up: `too few valid members`
                   │         fewer than 2 members young enough   ─▶ given up: `stale`
                   │         fewer than 2 members near enough    ─▶ given up: `divergence`
                   └─▶ batch: the lowest-numbered groups that are left, as soon as there are enough and each of
                       them was measured under the weights that the step begins with
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from driftline.divergence.admission import AdmissionPolicy, Candidate, GroupAdmission, admit_group
from driftline.records import GiveUp, Group
from driftline.training.members import GroupScore, MemberFacts, candidates, facts_of, member_uses, scored

FEWEST_VALID_MEMBERS = 2
"""A group with fewer has no statistics."""
INVALID = "too few valid members"
STALE = "stale"
DIVERGED = "divergence"


@dataclass(frozen=True, slots=True)
class BatchRule:
    """The parameters that decide about batches."""

    groups_per_step: int
    policy: AdmissionPolicy
    failed_groups: int
    """Most groups that may be given up for `INVALID` in the run."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A finished group, and what admission makes of it at one version."""

    group: Group
    version: int
    admission: GroupAdmission
    score: GroupScore | None
    reason: str | None
    """Why it is to be given up, None if it can be trained on. Begins with its kind."""
    final: bool
    """Whether nothing more is to be measured at this version."""
    facts: tuple[MemberFacts, ...]
    """For whoever judges it again, at another version or with a score."""

    def give_up(self, reason: str | None = None) -> GiveUp:
        """The group as one that is given up, for a reason of its own if none is given."""
        group = self.group
        return GiveUp(
            group.number,
            reason or self.reason or "",
            sampled_tokens(group),
            group.key,
            group.task_id,
            member_uses(group, self.admission, self.score, self.version),
            environment_of(group),
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the finished groups. At most one of `batch` and `exhausted` is set."""

    batch: tuple[Judged, ...]
    """Groups of the next step, by number; empty while there are too few."""
    give_ups: tuple[GiveUp, ...]
    waiting: tuple[Judged, ...]
    """Groups that stay for a later batch, by number."""
    exhausted: str | None
    """Why the run has failed."""

    @property
    def to_score(self) -> tuple[Group, ...]:
        """Groups that wait to be measured, those of the next batch first."""
        return tuple(judged.group for judged in self.waiting if not judged.final)


def judge(
    group: Group,
    score: GroupScore | None,
    *,
    version: int,
    policy: AdmissionPolicy,
    facts: tuple[MemberFacts, ...] | None = None,
) -> Judged:
    """Judge one finished group.

    Args:
        group: It.
        score: Its divergence from `version`, None while it was not measured.
        version: Number of the policy version that the next step trains from.
        policy: Who is admitted.
        facts: Of its members, where it was judged before.
    """
    facts = facts or facts_of(group)
    by_age = candidates(facts, version)
    unscored = admit_group(by_age, policy)
    reason = _invalid(group, facts) or _stale(by_age, unscored, policy)
    if reason is not None or score is None:
        final = reason is not None or not policy.limits_divergence
        return Judged(group, version, unscored, None, reason, final, facts)
    measured = scored(by_age, score)
    admission = admit_group(measured, policy)
    return Judged(group, version, admission, score, _diverged(measured, admission, policy), True, facts)


def decide(finished: Iterable[Judged], *, failed_before: int, rule: BatchRule) -> Decision:
    """Decide about finished groups.

    Args:
        finished: Groups that are neither trained nor given up, each once, in any order, judged at one version.
        failed_before: Groups given up before for `INVALID`.
        rule: The limits.
    """
    ordered = sorted(finished, key=lambda judged: judged.group.number)
    give_ups = tuple(judged.give_up() for judged in ordered if judged.reason is not None)
    usable = tuple(judged for judged in ordered if judged.reason is None)
    exhausted = _exhausted(give_ups, failed_before, rule)
    batch, waiting = usable[: rule.groups_per_step], usable[rule.groups_per_step :]
    full = len(batch) == rule.groups_per_step and all(judged.final for judged in batch)
    if exhausted is not None or not full:
        return Decision((), give_ups, usable, exhausted)
    return Decision(batch, give_ups, waiting, None)


def sampled_tokens(group: Group) -> int:
    """Tokens that the policy sampled for a group."""
    return sum(member.sampled_tokens for member in group.trajectories)


def environment_of(group: Group) -> str:
    """Versioned id of the environment that a group was played in."""
    return group.trajectories[0].environment if group.trajectories else ""


def count_failed(give_ups: Collection[GiveUp]) -> int:
    """How many of the groups were given up for `INVALID`."""
    return sum(give_up.reason.startswith(INVALID) for give_up in give_ups)


def _invalid(group: Group, facts: Sequence[MemberFacts]) -> str | None:
    valid = sum(one.valid for one in facts)
    if valid >= FEWEST_VALID_MEMBERS:
        return None
    return f"{INVALID}: {valid} of {len(group.trajectories)} ({_causes(group)})"


def _stale(members: Sequence[Candidate], admission: GroupAdmission, policy: AdmissionPolicy) -> str | None:
    if not admission.given_up:
        return None
    old = [one.lag_max for one, found in zip(members, admission.members, strict=True) if found.reason == "age"]
    return (
        f"{STALE}: {len(old)} of {len(members)} members are too old, by up to {max(old)} versions, limit "
        f"overlap.max_lag_versions {policy.max_lag_versions}"
    )


def _diverged(members: Sequence[Candidate], admission: GroupAdmission, policy: AdmissionPolicy) -> str | None:
    """Why too few members of a measured group are admitted, with the figures; None where enough are."""
    if not admission.given_up:
        return None
    dropped = Counter(found.reason for found in admission.members if found.verdict == "drop")
    known = [one.divergence for one in members if one.divergence is not None and one.valid]
    figures = {
        "k3": f"largest {max((d.k3 for d in known), default=0.0):.3g} nats a token, limit {policy.drop_k3_nats}",
        "ess": f"smallest {min((d.ess_fraction for d in known), default=1.0):.3g}, limit {policy.drop_ess_fraction}",
    }
    causes = [f"{count} x {reason}" + _in_brackets(figures.get(reason)) for reason, count in sorted(dropped.items())]
    admitted = len(members) - dropped.total()
    return f"{DIVERGED}: {admitted} of {len(members)} members admitted; dropped {', '.join(causes)}"


def _in_brackets(figures: str | None) -> str:
    return f" ({figures})" if figures else ""


def _causes(group: Group) -> str:
    counts = Counter(
        "log-probabilities are no numbers"
        if member.ended_by_itself
        else f"{member.status}: {member.reason}"
        if member.reason
        else member.status
        for member in group.trajectories
        if not member.valid
    )
    return "; ".join(f"{count} x {cause}" for cause, count in counts.most_common(2))


def _exhausted(give_ups: Sequence[GiveUp], before: int, rule: BatchRule) -> str | None:
    failed = [give_up for give_up in give_ups if give_up.reason.startswith(INVALID)]
    if not failed or before + len(failed) <= rule.failed_groups:
        return None
    last = failed[-1]
    return (
        f"{before + len(failed)} groups were given up because too few of their members were valid, limit "
        f"{rule.failed_groups}; the last was group {last.group} ({last.reason}): mend the environment or the engine, "
        "or raise limits.failed_groups"
    )
