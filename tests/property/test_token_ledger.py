"""The token ledger balances whatever happens: any order of writes, heartbeats, kills, restarts and damage.

What each decision makes of the tokens is counted here by hand, when it is taken: by term, and by reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from driftline.accounts import KILLED, CellAccount, TokenLedger
from driftline.measured import Reason, Verdict
from driftline.records import (
    GiveUp,
    Group,
    GroupUse,
    MemberUse,
    OffsetReport,
    PolicyVersion,
    StepRecord,
    StepTimes,
    Trajectory,
)
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.training.ledger import INVALID_MEMBER, TokenBook
from tests.support.training import group

RUN = "r"


def tokens_of(one: Group) -> int:
    return sum(member.sampled_tokens for member in one.trajectories)


def some_group(number: int, rewards: list[int | None]) -> Group:
    """A group, of which some begin with a sampled token, and one member was cancelled."""
    made = group(number, rewards)
    mask = (number % 2 == 0, True, False, True)
    members = [replace(one, loss_mask=mask) for one in made.trajectories]
    if number % 3 == 0 and members[-1].reward is None:
        members[-1] = replace(members[-1], status="cancelled")
    return replace(made, trajectories=tuple(members))


VERDICTS: list[tuple[Verdict, Reason, float]] = [
    ("keep", "", 1.0),
    ("keep", "", 1.0),
    ("down_weight", "k3", 0.5),
    ("drop", "age", 0.0),
    ("drop", "k3", 0.0),
    ("drop", "ess", 0.0),
    ("drop", "not_finite", 0.0),
]


def use_of(member: Trajectory, rng: Random) -> MemberUse:
    """What admission and the step might make of a member."""
    verdict: Verdict
    reason: Reason
    verdict, reason, weight = rng.choice(VERDICTS)
    if not member.valid:
        verdict, reason, weight = "drop", "invalid", 0.0
    masked_by = Counter[str]()
    if weight:
        scored = member.sampled_tokens - member.loss_mask[0]
        masked_by.update(rng.choice(["correction", "negative sequence"]) for _ in range(rng.randint(0, scored)))
    masked = masked_by.total()
    trained = member.sampled_tokens - member.loss_mask[0] - masked if weight else 0
    return MemberUse(
        member.member, "c0", verdict, reason, weight, member.sampled_tokens, masked, 1.0, (), 1, trained,
        dict(masked_by),
    )  # fmt: skip


def happened(one: Group, uses: tuple[MemberUse, ...], *, weight: float | None, failed: bool = False) -> Counter[str]:
    """What became of a group's tokens, by hand; `weight` None for one that was given up."""
    counts = Counter[str]()
    for member, use in zip(one.trajectories, uses, strict=True):
        tokens = member.sampled_tokens
        if use.reason in ("invalid", "not_finite"):
            counts["cancelled" if member.status == "cancelled" else "failed"] += tokens
        elif weight == 0.0:
            counts["zero_variance"] += tokens
        elif failed:
            counts["failed"] += tokens
        elif use.verdict == "drop":
            counts[f"stale {use.reason}"] += tokens
        elif weight is None:
            counts["stale group"] += tokens
        else:
            counts["trained"] += use.trained_tokens
            counts["masked no context"] += member.loss_mask[0]
            counts.update({f"masked {what}": masked for what, masked in use.masked_by.items()})
    return counts


def counted(ledger: TokenLedger) -> Counter[str]:
    """The same from the ledger."""
    found = Counter({name: getattr(ledger, name) for name in ("trained", "zero_variance", "failed")})
    found["cancelled"] = ledger.cancelled_by.get(INVALID_MEMBER, 0)
    found.update({f"stale {reason}": tokens for reason, tokens in ledger.stale_by.items()})
    found.update({f"masked {what}": tokens for what, tokens in ledger.masked_by.items()})
    return found


@dataclass
class Cell:
    """An incarnation of a cell that samples, delivers and throws away; its counts are what really happened."""

    runs: RunStore
    name: str
    incarnation: str
    sequence: int
    earlier: tuple[CellAccount, ...] = ()
    generated: int = 0
    delivered: int = 0
    probe: int = 0
    thrown_away: int = 0
    in_flight: int = 0
    ticks: int = 0

    def account(self, going: int = 0) -> CellAccount:
        self.ticks += 1
        return CellAccount(
            self.name, self.incarnation, self.sequence + (1 if going else 0), self.ticks, self.generated,
            self.delivered + going, self.in_flight - going, self.probe, {"claim lost": self.thrown_away},
        )  # fmt: skip

    def sample(self, tokens: int) -> None:
        self.generated += tokens
        self.in_flight += tokens

    def score(self) -> None:
        self.generated += 1
        self.probe += 1

    def throw_away(self, share: int) -> None:
        lost = self.in_flight * share // 10
        self.in_flight -= lost
        self.thrown_away += lost

    def deliver(self, *groups: Group, heartbeat_meanwhile: bool) -> str:
        tokens = sum(map(tokens_of, groups))
        self.sample(tokens)
        account = self.account(tokens)
        if heartbeat_meanwhile:
            self.heartbeat()
        key = self.runs.append_groups(self.name, self.sequence, groups, account)
        self.sequence, self.delivered, self.in_flight = (
            self.sequence + 1,
            self.delivered + tokens,
            self.in_flight - tokens,
        )
        return key

    def heartbeat(self) -> None:
        self.runs.write_offset(
            OffsetReport(
                RUN,
                self.name,
                self.incarnation,
                0,
                0,
                0.0,
                0.0,
                0,
                0,
                self.generated,
                0.0,
                account=self.account(),
                earlier=self.earlier,
            )
        )

    def succeed(self) -> Cell:
        """Killed, without a word; the next incarnation knows its last heartbeat."""
        before = self.runs.offset(self.name)
        earlier = (*before.earlier, before.account) if before and before.account else ()
        number = int(self.incarnation[1:]) + 1
        return Cell(self.runs, self.name, f"i{number}", self.runs.next_sequence(self.name), earlier)


@dataclass
class Trainer:
    """As the trainer's intake and loop do it: looks, decides, records; `restart` keeps nothing but the store."""

    runs: RunStore
    records: list[StepRecord] = field(default_factory=list[StepRecord])
    given_up: list[GiveUp] = field(default_factory=list[GiveUp])
    rng: Random = field(default_factory=lambda: Random(0))
    recorded: Counter[str] = field(default_factory=Counter[str])
    """What the steps on record made of their tokens, by hand."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.book = TokenBook(self.records)
        self.cursor = self.runs.trajectory_cursor(self.book.frontier.keys)
        self.waiting: list[Group] = []
        self.done = {use.group for record in self.records for use in record.groups}
        self.done |= {give_up.group for record in self.records for give_up in record.give_ups}
        self.given_up = []
        self.since: Counter[str] = Counter()
        """The same of what was given up since the last record, which a restart forgets."""

    def look(self) -> None:
        groups, deliveries = self.cursor.look()
        self.book.read(deliveries, groups, self.cursor.positions)
        self.waiting += [one for one in groups if one.number not in self.done]

    def give_up(self, reason: str) -> None:
        if self.waiting:
            one = self.waiting.pop(0)
            uses = tuple(replace(use_of(member, self.rng), weight=0.0) for member in one.trajectories)
            self.given_up.append(GiveUp(one.number, reason, tokens_of(one), one.key, one.task_id, uses))
            self.since += happened(one, uses, weight=None, failed=not reason.startswith(("stale", "divergence")))
            self.book.give_up(self.given_up[-1:])
            self.done.add(one.number)

    def step(self, size: int) -> TokenLedger:
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        uses = tuple(
            GroupUse(
                g.number, g.key, 1, g.task_id, g.task_set, float(g.number % 3 > 0), 4, 4, 0, 0, 0, 0, 0, 0,
                tuple(use_of(member, self.rng) for member in g.trajectories),
            )
            for g in batch
        )  # fmt: skip
        for one, use in zip(batch, uses, strict=True):
            self.since += happened(one, use.uses, weight=use.weight)
        for use in uses:
            self.book.use(use)
        self.done |= {use.group for use in uses}
        frontier, ledger = self.book.advance(), self.book.ledger()
        number = len(self.records) + 1
        version = PolicyVersion(number, 1)
        self.records.append(
            StepRecord(
                RUN,
                number,
                1,
                version,
                version,
                uses,
                tuple(self.given_up),
                {},
                {},
                StepTimes(0, 0, 0, 0, 0, 0),
                None,
                frontier=frontier,
                ledger=ledger,
            )
        )
        self.given_up = []
        self.recorded, self.since = self.recorded + self.since, Counter()
        return ledger


ACTS = ("sample", "score", "throw away", "deliver", "deliver", "again", "heartbeat", "kill", "look", "stale",
        "divergence", "failed", "step", "step", "restart")  # fmt: skip
GIVE_UPS = {"stale": "stale: x", "divergence": "divergence: x", "failed": "too few valid members: x"}


@example(acts=[("sample", 0), ("heartbeat", 0), ("kill", 0), ("deliver", 0), ("step", 1)], damage=False)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 9)), min_size=5, max_size=60), st.booleans())
def test_the_ledger_balances_at_every_step(acts: list[tuple[str, int]], damage: bool) -> None:
    store = MemoryStore()
    runs = RunStore(store, RUN)
    cells = [Cell(runs, name, "i0", 0) for name in ("c0", "c1")]
    rng, delivered = Random(len(acts)), list[Group]()
    trainer = Trainer(runs, rng=rng)
    for act, number in acts:
        cell = cells[number % 2]
        match act:
            case "sample":
                cell.sample(number)
            case "score":
                cell.score()
            case "throw away":
                cell.throw_away(number)
            case "deliver" | "again":
                rewards = [rng.choice([0, 1, None]) for _ in range(2 + number % 3)]
                new = some_group(len(delivered), rewards)
                if act == "again" and delivered:
                    new = some_group(rng.randrange(len(delivered)), rewards)
                else:
                    delivered.append(new)
                key = cell.deliver(new, heartbeat_meanwhile=bool(number % 2))
                if damage and number == 3:
                    store.put(key, b"PAR1 rubbish")
                    cell.heartbeat()
            case "heartbeat":
                cell.heartbeat()
            case "kill":
                cells[number % 2] = cell.succeed()
            case "look":
                trainer.look()
            case "stale" | "divergence" | "failed":
                trainer.give_up(GIVE_UPS[act])
            case "step":
                if number % 3 == 1:
                    trainer.look()
                if number % 3:
                    trainer.book.heartbeats(runs.offsets())
                check(trainer.step(number % 4), cells, trainer)
            case "restart":
                trainer.restart()
                trainer.look()
    for cell in cells:
        cell.heartbeat()
    trainer.look()
    trainer.book.heartbeats(runs.offsets())
    check(trainer.step(3), cells, trainer)


def check(ledger: TokenLedger, cells: list[Cell], trainer: Trainer) -> None:
    assert ledger.imbalance == 0, ledger
    assert +counted(ledger) == +trainer.recorded
    assert sum(ledger.masked_by.values()) == ledger.masked
    assert sum(ledger.stale_by.values()) == ledger.stale
    assert sum(ledger.cancelled_by.values()) == ledger.cancelled
    assert min(ledger.terms.values()) >= 0
    for known in ledger.incarnations:
        assert known.account.imbalance == 0
        assert not known.ended or known.account.incarnation != cells[int(known.account.cell[1])].incarnation
        assert known.killed + known.lost == (known.account.in_flight if known.ended else 0)


def test_what_was_in_flight_at_the_last_heartbeat_was_killed_and_only_what_came_after_it_is_lost() -> None:
    runs = RunStore(MemoryStore(), RUN)
    cell, trainer = Cell(runs, "c0", "i0", 0), Trainer(runs)
    cell.sample(30)
    cell.heartbeat()
    trainer.book.heartbeats(runs.offsets())
    cell.sample(7)
    cell.deliver(group(0, [1, 0]), heartbeat_meanwhile=False)
    cell.sample(1000)
    trainer.look()
    ledger = trainer.step(0)
    assert (ledger.generated, ledger.in_flight, ledger.ready, ledger.lost) == (41, 37, 4, 0)
    cells = cell.succeed()
    cells.heartbeat()
    trainer.book.heartbeats(runs.offsets())
    ledger = trainer.step(1)
    assert (ledger.generated, ledger.in_flight, ledger.trained) == (41, 0, 0)
    assert ledger.zero_variance + ledger.failed == 4
    assert ledger.lost == 11, "41 were generated at its last word, 30 at its last heartbeat"
    assert ledger.cancelled_by == {KILLED: 26}
    assert ledger.imbalance == 0


def test_tokens_of_an_object_that_cannot_be_read_are_lost_as_many_as_its_cell_wrote() -> None:
    store = MemoryStore()
    runs = RunStore(store, RUN)
    cell, trainer = Cell(runs, "c0", "i0", 0), Trainer(runs)
    cell.deliver(group(0, [1, 0]), heartbeat_meanwhile=False)
    key = cell.deliver(group(1, [1, 0, 1]), heartbeat_meanwhile=False)
    store.put(key, store.get(key).body[:-100])
    trainer.look()
    assert [*trainer.cursor.damaged] == [key]
    assert trainer.step(1).lost == 0, "the object took its account with it"
    cell.deliver(group(2, [1, 0]), heartbeat_meanwhile=False)
    trainer.look()
    ledger = trainer.step(1)
    assert (ledger.lost, ledger.imbalance) == (6, 0)
    assert trainer.records[-1].frontier.keys == {"c0": keys.trajectories(RUN, "c0", 2)}
    trainer.restart()
    trainer.look()
    assert trainer.step(0).lost == 6


def test_tokens_that_nobody_explains_are_seen() -> None:
    """What the check is for: a count that is wrong anywhere shows as an imbalance."""
    runs = RunStore(MemoryStore(), RUN)
    cell, trainer = Cell(runs, "c0", "i0", 0), Trainer(runs)
    cell.generated += 5
    cell.deliver(group(0, [1, 0]), heartbeat_meanwhile=False)
    trainer.look()
    assert trainer.step(1).imbalance == 5
    surplus = replace(trainer.records[-1].ledger, generated=0) if trainer.records[-1].ledger else None
    assert surplus is not None
    assert surplus.imbalance < 0
