"""What became of the sampled tokens of one delivered group. Pure.

    a step used it      member invalid ─▶ cancelled or failed     rewards all equal ─▶ zero variance
                        dropped ─▶ stale, by reason               else ─▶ trained, or masked by what masked it
    it was given up     too few valid ─▶ failed                   else ─▶ stale: dropped members by their reason,
                                                                  admitted ones as `group`

Tokens that were trained on or masked are counted where the loss is computed, those of the trajectory here: each
count is made on its own, so one that is wrong shows in the ledger's balance.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftline.accounts import Fates
from driftline.records import GiveUp, Group, GroupUse, MemberUse, Trajectory
from driftline.training.batching import DIVERGED, STALE

NO_CONTEXT = "no context"
"""Reason of masked first tokens, which nothing precedes."""
GROUP = "group"
"""Reason of stale tokens of admitted members of a group that was given up."""
AGE = "age"


@dataclass(frozen=True, slots=True)
class MemberTokens:
    """The sampled tokens of one member."""

    member: int
    sampled: int
    without_context: int
    """Of these, a first token."""
    valid: bool
    cancelled: bool

    @classmethod
    def of(cls, member: Trajectory) -> MemberTokens:
        """Count them."""
        first = int(bool(member.loss_mask) and member.loss_mask[0])
        return cls(member.member, member.sampled_tokens, first, member.valid, member.status == "cancelled")

    @property
    def invalid(self) -> Fates:
        """Their fate where the member is in no statistic."""
        return Fates(cancelled=self.sampled) if self.cancelled else Fates(failed=self.sampled)

    def trained(self, use: MemberUse | None) -> Fates:
        """Their fate in a step that trained on the member."""
        if use is None:
            kept, masked_by = self.sampled - self.without_context, dict[str, int]()
        else:
            kept, masked_by = use.trained_tokens, dict(use.masked_by)
        if self.without_context:
            masked_by[NO_CONTEXT] = self.without_context
        return Fates(trained=kept, masked=sum(masked_by.values()), masked_by=masked_by)

    def stale(self, reason: str) -> Fates:
        """Their fate where the member was not trained on, for a reason of admission."""
        return Fates(stale=self.sampled, stale_by={reason: self.sampled} if self.sampled else {})


@dataclass(frozen=True, slots=True)
class GroupTokens:
    """The sampled tokens of one delivered group."""

    number: int
    members: tuple[MemberTokens, ...]

    @classmethod
    def of(cls, group: Group) -> GroupTokens:
        """Count them."""
        return cls(group.number, tuple(MemberTokens.of(member) for member in group.trajectories))

    @property
    def total(self) -> int:
        """All of them."""
        return sum(member.sampled for member in self.members)

    def used(self, use: GroupUse) -> Fates:
        """Their fates in a step that used the group."""
        fates, known = Fates(), _by_member(use.uses)
        for member in self.members:
            found = known.get(member.member)
            if not (member.valid if found is None else found.counted):
                fates += member.invalid
            elif use.weight == 0.0:
                fates += Fates(zero_variance=member.sampled)
            elif found is not None and found.verdict == "drop":
                fates += member.stale(found.reason)
            else:
                fates += member.trained(found)
        return fates

    def given_up(self, give_up: GiveUp) -> Fates:
        """Their fates in a group that was given up."""
        fates, known = Fates(), _by_member(give_up.uses)
        stale = give_up.reason.startswith((STALE, DIVERGED))
        for member in self.members:
            found = known.get(member.member)
            if not (member.valid if found is None else found.counted):
                fates += member.invalid
            elif not stale:
                fates += Fates(failed=member.sampled)
            elif found is None:
                fates += member.stale(AGE)
            else:
                fates += member.stale(found.reason if found.verdict == "drop" else GROUP)
        return fates


def _by_member(uses: tuple[MemberUse, ...]) -> dict[int, MemberUse]:
    return {use.member: use for use in uses}
