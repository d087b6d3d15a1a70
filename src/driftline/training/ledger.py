"""The token ledger as the trainer keeps it: what became of every sampled token. Nothing here reads the store.

    objects of finished groups ─▶ tokens delivered ─▶ what the steps made of their groups ─▶ fates
          └─ accounts of cells, and heartbeats ─▶ generated, in flight, probe, cancelled in the cell

All of it can be rebuilt from the step records and the objects beyond the frontier of the last one: what lies behind
the frontier is settled, and its sums are in the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from driftline.accounts import KILLED, CellAccount, Fates, Frontier, IncarnationTokens, TokenLedger
from driftline.records import GiveUp, Group, GroupUse, OffsetReport, StepRecord
from driftline.store import keys
from driftline.store.cursor import Delivery
from driftline.training.fates import GroupTokens

INVALID_MEMBER = "episode cancelled"
"""Reason of tokens of delivered members that their cell had cancelled."""


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    groups: tuple[GroupTokens, ...]
    damaged: bool


class TokenBook:
    """Follows deliveries, accounts and decisions; gives the ledger and the frontier of the next record."""

    def __init__(self, records: Sequence[StepRecord]) -> None:
        """Begin where the last committed record ended."""
        last = records[-1] if records else None
        self.frontier = last.frontier if last else Frontier()
        self._verdicts: dict[int, GroupUse | GiveUp] = {}
        """What was decided about each group."""
        for record in records:
            for use in record.groups:
                self.use(use)
            self.give_up(record.give_ups)
        self._objects: dict[str, list[_Object]] = {}
        self._first: dict[int, str] = {}
        self._incarnations: dict[tuple[str, str], IncarnationTokens] = {}
        self._pending: dict[tuple[str, str], CellAccount] = {}
        self._next: dict[str, int] = {cell: keys.sequence(key) + 1 for cell, key in self.frontier.keys.items()}
        for known in last.ledger.incarnations if last and last.ledger else ():
            self._incarnations[known.account.cell, known.account.incarnation] = known

    # ---- what is told

    def read(self, deliveries: Iterable[Delivery], counted: Iterable[Group], positions: Mapping[str, str]) -> None:
        """Take in objects that were read.

        Args:
            deliveries: The objects, each cell's in order.
            counted: The groups among them that were seen for the first time.
            positions: Cell -> key up to which all of its objects are read.
        """
        self._first |= {group.number: group.key for group in counted}
        for delivery in deliveries:
            tokens = tuple(GroupTokens.of(group) for group in delivery.groups)
            self._objects.setdefault(delivery.cell, []).append(_Object(delivery.key, tokens, bool(delivery.damage)))
            if delivery.account is not None:
                self._apply(delivery.account)
        for cell, key in positions.items():
            self._next[cell] = keys.sequence(key) + 1
        for account in [*self._pending.values()]:
            self._heartbeat(account)

    def heartbeats(self, reports: Iterable[OffsetReport]) -> None:
        """Take in the newest offset reports."""
        for report in reports:
            for account in report.earlier:
                self._heartbeat(account)
                self._end(account)
            if report.account is not None:
                self._end_others(report.account)
                self._heartbeat(report.account)

    def use(self, use: GroupUse) -> None:
        """A step uses a group."""
        self._verdicts[use.group] = use

    def give_up(self, give_ups: Iterable[GiveUp]) -> None:
        """Groups are given up."""
        for given_up in give_ups:
            self._verdicts[given_up.group] = given_up

    # ---- what follows from it

    def advance(self) -> Frontier:
        """Move the frontier over the objects that are settled, and return it."""
        for cell, objects in self._objects.items():
            objects.sort(key=lambda found: found.key)
            while objects and self._settled(cell, objects[0]):
                self._pass(cell, objects.pop(0))
        return self.frontier

    def ledger(self) -> TokenLedger:
        """The ledger as it stands."""
        fates = self.frontier.fates
        for objects in self._objects.values():
            for found in objects:
                for tokens in found.groups:
                    fates += self._fate(found.key, tokens)
        known = tuple(self._incarnations.values())
        cancelled: Counter[str] = Counter({INVALID_MEMBER: fates.cancelled})
        cancelled[KILLED] += sum(one.killed for one in known)
        for one in known:
            cancelled.update(one.account.cancelled)
        return TokenLedger(
            generated=sum(one.account.generated for one in known),
            trained=fates.trained,
            masked=fates.masked,
            stale=fates.stale,
            cancelled=cancelled.total(),
            failed=fates.failed,
            zero_variance=fates.zero_variance,
            surplus=fates.surplus,
            probe=sum(one.account.probe for one in known),
            ready=fates.ready,
            in_flight=sum(one.account.in_flight for one in known if not one.ended),
            lost=sum(one.lost for one in known) + self._unreadable(),
            cancelled_by={reason: tokens for reason, tokens in sorted(cancelled.items()) if tokens},
            incarnations=known,
            masked_by=dict(fates.masked_by),
            stale_by=dict(fates.stale_by),
        )

    # ---- incarnations

    def _heartbeat(self, account: CellAccount) -> None:
        """Take in a heartbeat, now or as soon as the objects that it counts as delivered are read."""
        identity = account.cell, account.incarnation
        if account.sequence > self._next.get(account.cell, 0):
            self._pending[identity] = account
            return
        self._pending.pop(identity, None)
        self._apply(account)
        known = self._incarnations[identity]
        self._incarnations[identity] = replace(known, heartbeat=max(known.heartbeat, account.generated))

    def _apply(self, account: CellAccount) -> None:
        identity = account.cell, account.incarnation
        known = self._incarnations.get(identity)
        if known is None:
            ended = self._is_succeeded(account)
            self._incarnations[identity] = IncarnationTokens(account, 0, ended)
        elif account.order > known.account.order:
            self._incarnations[identity] = replace(known, account=account)
        for other, found in self._incarnations.items():
            if other[0] == account.cell and other != identity and found.account.sequence < account.sequence:
                self._incarnations[other] = replace(found, ended=True)

    def _is_succeeded(self, account: CellAccount) -> bool:
        return any(
            cell == account.cell and incarnation != account.incarnation and found.account.sequence > account.sequence
            for (cell, incarnation), found in self._incarnations.items()
        )

    def _end(self, account: CellAccount) -> None:
        identity = account.cell, account.incarnation
        if identity in self._incarnations:
            self._incarnations[identity] = replace(self._incarnations[identity], ended=True)

    def _end_others(self, account: CellAccount) -> None:
        """A cell's newest report tells which incarnation lives, unless its own is known to have ended.

        One that has not reported yet may have written an object already: then the report is of the one before it.
        """
        known = self._incarnations.get((account.cell, account.incarnation))
        if (known is not None and known.ended) or self._is_succeeded(account):
            return
        for (cell, incarnation), found in self._incarnations.items():
            if cell == account.cell and incarnation != account.incarnation:
                self._incarnations[cell, incarnation] = replace(found, ended=True)

    # ---- fates

    def _fate(self, key: str, tokens: GroupTokens) -> Fates:
        verdict = self._verdicts.get(tokens.number)
        first = self._first.get(tokens.number, key)
        if (verdict.key or first if verdict else first) != key:
            return Fates(surplus=tokens.total)
        if verdict is None:
            return Fates(ready=tokens.total)
        return tokens.given_up(verdict) if isinstance(verdict, GiveUp) else tokens.used(verdict)

    def _settled(self, cell: str, found: _Object) -> bool:
        within = keys.sequence(found.key) < self._next.get(cell, 0)
        return within and all(tokens.number in self._verdicts for tokens in found.groups)

    def _pass(self, cell: str, found: _Object) -> None:
        frontier, tokens = self.frontier, sum(tokens.total for tokens in found.groups)
        fates = frontier.fates
        for one in found.groups:
            fates += self._fate(found.key, one)
        self.frontier = Frontier(
            keys={**frontier.keys, cell: found.key},
            fates=fates,
            tokens={**frontier.tokens, cell: frontier.tokens.get(cell, 0) + tokens},
            damaged={**frontier.damaged, cell: frontier.damaged.get(cell, 0) + found.damaged},
        )

    def _unreadable(self) -> int:
        """Tokens that cells say they have delivered, of cells that have objects which cannot be read."""
        lost = 0
        for cell in {cell for cell, _ in self._incarnations}:
            objects = self._objects.get(cell, [])
            if self.frontier.damaged.get(cell, 0) + sum(found.damaged for found in objects):
                read = self.frontier.tokens.get(cell, 0) + sum(t.total for found in objects for t in found.groups)
                said = sum(known.account.delivered for (c, _), known in self._incarnations.items() if c == cell)
                lost += said - read
        return lost
