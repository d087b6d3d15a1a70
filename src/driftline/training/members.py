"""Members of a group on their way into a step. Pure.

    as read ─▶ scored (`MemberScore`) ─▶ candidates of admission ─▶ weights of the batch ─▶ uses on record

Who counts is decided once, by admission: a member without a reward of its own, or with a log-probability that is no
number, is in no statistic and in no batch. Everybody else is in the group's baseline, whatever their weight. A batch
is built from recorded uses alone, so a step that is run again has the weights it had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from driftline.divergence.admission import AdmissionPolicy, Candidate, GroupAdmission
from driftline.measured import NOTHING, DivergenceSummary, pooled
from driftline.params import RunParameters
from driftline.records import Group, GroupUse, MemberUse, SegmentUse, Trajectory
from driftline.training.batch import MemberWeights
from driftline.training.segments import oldest_version, sampled_segments
from driftline.training.statistics import StepStatistics

CORRECTION, NEGATIVE_SEQUENCE = "correction", "negative sequence"
"""What masks tokens of a trained member."""


@dataclass(frozen=True, slots=True)
class MemberScore:
    """How far a member's tokens are from the policy that scored them."""

    divergence: DivergenceSummary
    by_lag: Mapping[int, DivergenceSummary] = field(default_factory=dict[int, DivergenceSummary])

    @property
    def finite(self) -> bool:
        """Whether every log-probability is a number."""
        return math.isfinite(self.divergence.k3)


GroupScore = Sequence[MemberScore | None]
"""Of each member in order; None for those that cannot be scored, being in no statistic."""


def policy_of(params: RunParameters) -> AdmissionPolicy:
    """The admission policy that the parameters name."""
    limits = params.admission
    return AdmissionPolicy(
        params.overlap.max_lag_versions,
        limits.down_weight_k3_nats,
        limits.drop_k3_nats,
        limits.down_weight_ess_fraction,
        limits.drop_ess_fraction,
    )


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """What does not change while a member waits, read from its tokens once."""

    ended_by_itself: bool
    finite: bool
    oldest_version: int | None
    """Of its sampled tokens; None where nothing was sampled."""

    @property
    def valid(self) -> bool:
        """As `Trajectory.valid`."""
        return self.ended_by_itself and self.finite


def facts_of(group: Group) -> tuple[MemberFacts, ...]:
    """Of each member of a finished group, in order."""
    return tuple(
        MemberFacts(member.ended_by_itself, member.finite, oldest_version(member)) for member in group.trajectories
    )


def candidates(facts: Sequence[MemberFacts], version: int) -> list[Candidate]:
    """The members as admission sees them before they are scored: only what is known without speaks against them.

    Args:
        facts: Of a group's members.
        version: Number of the version that the next step trains from.
    """
    return [
        Candidate(
            valid=one.ended_by_itself,
            lag_max=0 if one.oldest_version is None else max(0, version - one.oldest_version),
            divergence=NOTHING if one.finite else None,
        )
        for one in facts
    ]


def scored(members: Sequence[Candidate], score: GroupScore) -> list[Candidate]:
    """The same members with their score under that version."""
    return [
        one if found is None else replace(one, divergence=found.divergence if found.finite else None)
        for one, found in zip(members, score, strict=True)
    ]


def member_uses(
    group: Group, admission: GroupAdmission, score: GroupScore | None, version: int
) -> tuple[MemberUse, ...]:
    """What a record says of each member before a step has looked at it.

    Args:
        group: The group.
        admission: What became of its members.
        score: Its score, if it was scored.
        version: Number of the version scored by.
    """
    weighed = zip(group.trajectories, admission.members, admission.weights, strict=True)
    return tuple(
        MemberUse(
            member=member.member,
            cell=member.cell,
            verdict=found.verdict,
            reason=found.reason,
            weight=weight,
            sampled_tokens=member.sampled_tokens,
            masked_tokens=0,
            seconds=member.finished_unix - member.started_unix,
            segments=_segments(member, score[index] if score else None, version),
            turns=member.turns,
        )
        for index, (member, found, weight) in enumerate(weighed)
    )


def batch_weights(uses: Sequence[GroupUse], groups: Sequence[Group]) -> dict[int, MemberWeights]:
    """Group number -> weights of its members, as the uses have them.

    Args:
        uses: How groups enter a step.
        groups: The same groups, in the same order.
    """
    return {use.group: _weights(use, group) for use, group in zip(uses, groups, strict=True)}


def stepped(
    uses: Sequence[GroupUse], groups: Sequence[Group], found: StepStatistics, version: int
) -> tuple[GroupUse, ...]:
    """The uses with what the step has measured of them.

    Args:
        uses: As they were before the step.
        groups: The same groups, in the same order.
        found: What the step measured of the batch.
        version: Number of the version trained from.
    """
    sequences, made = iter(range(len(found.by_sequence))), list[GroupUse]()
    for use, group in zip(uses, groups, strict=True):
        members = tuple(
            _stepped(use.weight * one.weight, one, member, found, next(sequences), version) if one.counted else one
            for one, member in zip(use.uses, group.trajectories, strict=True)
        )
        made.append(replace(use, uses=members))
    assert next(sequences, None) is None, "the batch is made of the uses' counted members"
    return tuple(made)


def name_of_sequence(uses: Sequence[GroupUse], groups: Sequence[Group], sequence: int | None) -> str:
    """The trajectory at a place in the batch of these uses, as `group 12 member 3 (cell c0)`."""
    members = [member for group in in_batch(uses, groups) for member in group.trajectories]
    if sequence is None or not 0 <= sequence < len(members):
        return "a trajectory of the batch"
    found = members[sequence]
    return f"group {found.group} member {found.member} (cell {found.cell})"


def trained_divergence(uses: Sequence[GroupUse], found: StepStatistics) -> DivergenceSummary:
    """The divergence of the members that a step was trained on: admitted ones, of groups with a variance.

    Args:
        uses: How groups entered the step.
        found: What the step measured of its batch, sequence by sequence.
    """
    weights = [use.weight * member.weight for use in uses for member in use.uses if member.counted]
    measured = zip(weights, found.by_sequence, strict=bool(found.by_sequence))
    return pooled(summary for weight, summary in measured if weight > 0)


def in_batch(uses: Sequence[GroupUse], groups: Sequence[Group]) -> list[Group]:
    """The groups with the members alone that a batch of these uses holds."""
    return [
        replace(
            group,
            trajectories=tuple(
                member
                for member, weight in zip(group.trajectories, _weights(use, group), strict=True)
                if weight is not None
            ),
        )
        for use, group in zip(uses, groups, strict=True)
    ]


def group_score(group: Group, found: StepStatistics, sequences: Sequence[int | None]) -> GroupScore:
    """The score of a group, from the statistics of a batch.

    Args:
        group: The group.
        found: What was measured of the batch.
        sequences: The place of each member in the batch; None for those that are not in it.
    """
    return tuple(
        None if place is None else MemberScore(found.by_sequence[place], found.by_sequence_and_lag[place])
        for _, place in zip(group.trajectories, sequences, strict=True)
    )


def _weights(use: GroupUse, group: Group) -> MemberWeights:
    if not use.uses:
        return tuple(use.weight if member.valid else None for member in group.trajectories)
    return tuple(use.weight * member.weight if member.counted else None for member in use.uses)


def _stepped(
    weight: float, use: MemberUse, member: Trajectory, found: StepStatistics, sequence: int, version: int
) -> MemberUse:
    masked, negative = found.masked_by_sequence[sequence], found.negative_by_sequence[sequence]
    masked_by = {CORRECTION: masked - negative, NEGATIVE_SEQUENCE: negative}
    score = MemberScore(found.by_sequence[sequence], found.by_sequence_and_lag[sequence])
    return replace(
        use,
        masked_tokens=masked,
        masked_by={name: tokens for name, tokens in masked_by.items() if tokens},
        trained_tokens=found.trained_by_sequence[sequence] if weight else 0,
        # The weights are those that scored it, so what it was scored with stands.
        segments=use.segments or _segments(member, score, version),
    )


def _segments(member: Trajectory, score: MemberScore | None, version: int) -> tuple[SegmentUse, ...]:
    """What each version sampled; a lag beyond all that are told apart is that of the oldest version."""
    if score is None or not score.finite or not score.by_lag:
        return ()
    furthest = max(score.by_lag)
    # A first token is in no score.
    scored = reversed(sampled_segments(member, begin=1))
    made = {min(furthest, max(0, version - segment.version)): segment for segment in scored}
    return tuple(
        SegmentUse(segment.start, segment.version, one.tokens, one.k1, one.k3, one.ess_fraction)
        for lag, segment in sorted(made.items(), reverse=True)
        if (one := score.by_lag.get(lag)) is not None
    )
