"""Sampled tokens, accounted for: what cells say of theirs, and what a run's ledger makes of it. Part of `records`.

A cell's account is a consistent cut: all of its counts were taken at one moment, in one thread. It travels with every
object of finished groups, so whoever has read a cell's objects up to one of them knows exactly what the cell had in
flight besides; nothing has to be asked at the same time as anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

KILLED = "killed"
"""Reason of tokens that were in flight in a cell that was killed."""


@dataclass(frozen=True, slots=True)
class CellAccount:
    """What one incarnation of a cell had done with its engine's tokens at one moment. All counts since its start.

    `generated` is the engine's counter; the other counts are made apart from it, where things happen.
    """

    cell: str
    incarnation: str
    """Unique to one start of the cell's process."""
    sequence: int
    """Number of the cell's next object; those before it are delivered, the one that carries this account included."""
    tick: int
    """Counts the accounts of an incarnation."""
    generated: int
    delivered: int
    """In the objects that this incarnation has written."""
    in_flight: int
    """Sampled for episodes that go on, or whose groups are not written yet."""
    probe: int
    """Sampled for scores, and for probe groups that measure tasks."""
    cancelled: Mapping[str, int]
    """Reason -> tokens thrown away in the cell."""
    store_requests: int = 0
    claim_wait_s: float = 0.0
    """Seconds without any episode in flight because of claims that were not answered yet."""

    @property
    def order(self) -> tuple[int, int]:
        """What orders the accounts of an incarnation.

        A heartbeat that was sent while an object was on its way does not know of it, so it is older than that
        object's account, whichever was taken first.
        """
        return self.sequence, self.tick

    @property
    def imbalance(self) -> int:
        """Tokens generated that the other counts do not explain."""
        return self.generated - self.delivered - self.in_flight - self.probe - sum(self.cancelled.values())


@dataclass(frozen=True, slots=True)
class IncarnationTokens:
    """What the trainer knows of one incarnation of a cell."""

    account: CellAccount
    """The newest one whose objects are all read."""
    heartbeat: int
    """`generated` at its last known heartbeat."""
    ended: bool
    """Whether a newer incarnation of the cell is known."""

    @property
    def lost(self) -> int:
        """Of what it had in flight when it ended: the part that it generated after its last known heartbeat."""
        if not self.ended:
            return 0
        return min(self.account.in_flight, max(0, self.account.generated - self.heartbeat))

    @property
    def killed(self) -> int:
        """Of what it had in flight when it ended: the part that its last heartbeat knew of."""
        return self.account.in_flight - self.lost if self.ended else 0


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the tokens of delivered groups."""

    trained: int = 0
    masked: int = 0
    """Of trained groups, but not in the loss."""
    stale: int = 0
    cancelled: int = 0
    failed: int = 0
    zero_variance: int = 0
    surplus: int = 0
    """Of a second attempt at a group."""
    ready: int = 0
    """Delivered, and neither used nor given up yet."""
    masked_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """`masked`, by what masked them."""
    stale_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """`stale`, by the reason of their member."""

    def __add__(self, other: Fates) -> Fates:
        return Fates(
            *(getattr(self, name) + getattr(other, name) for name in _FATES),
            masked_by=_added(self.masked_by, other.masked_by),
            stale_by=_added(self.stale_by, other.stale_by),
        )

    @property
    def total(self) -> int:
        """All tokens delivered."""
        return sum(getattr(self, name) for name in _FATES)


_FATES = tuple(f.name for f in fields(Fates) if f.type == "int")


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in sorted({*one, *other})} if other else one


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far the streams are done with: every group in the objects up to these keys is used, given up or surplus."""

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cell -> key of an object of finished groups."""
    fates: Fates = Fates()
    """Of the tokens in those objects."""
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Cell -> tokens read from those objects."""
    damaged: Mapping[str, int] = field(default_factory=dict[str, int])
    """Cell -> objects among them that could not be read."""


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """What became of every token sampled in a run so far; `generated` equals the sum of the other terms.

    Each term is counted on its own: `generated` by the engines; `probe`, `in_flight` and part of `cancelled` by the
    cells; `lost` from what is known of dead incarnations and unreadable objects; all else from the tokens delivered.
    """

    generated: int
    trained: int
    masked: int
    stale: int
    cancelled: int
    failed: int
    zero_variance: int
    surplus: int
    probe: int
    ready: int
    in_flight: int
    lost: int
    cancelled_by: Mapping[str, int]
    """`cancelled`, by reason."""
    incarnations: tuple[IncarnationTokens, ...]
    masked_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """`masked`, by what masked them: `correction`, `negative sequence`, or `no context` for first tokens."""
    stale_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """`stale`, by reason: `age`, `k3`, `ess`, or `group` for admitted members of groups that were given up."""

    @property
    def terms(self) -> dict[str, int]:
        """The terms that explain `generated`, by name."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def imbalance(self) -> int:
        """Tokens generated that no term explains; negative if the terms explain more. Zero, or something is wrong."""
        return self.generated - sum(self.terms.values())


TERMS = (
    "trained",
    "masked",
    "stale",
    "cancelled",
    "failed",
    "zero_variance",
    "surplus",
    "probe",
    "ready",
    "in_flight",
    "lost",
)
"""Names of the terms of `TokenLedger` that add up to `generated`."""
