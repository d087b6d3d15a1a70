"""Where the tokens are that a cell's engine has sampled, by the cell's own count.

    engine ─▶ episode ─▶ member of an open group ─▶ queue of the writer ─▶ object in the store
       └─────────┼──────────────────┴─▶ thrown away: the claim was lost, or the cell ends
                 └─▶ probe group: measured, not kept

Everything here happens in the thread of the event loop, so that an account is a consistent cut: no token moves while
it is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from driftline.accounts import CellAccount
from driftline.engine.protocol import Engine
from driftline.records import Group, Trajectory
from driftline.rollout.episode import Episode

UNFINISHED_TURN = "unfinished turn"
"""The request was cancelled or failed, so that its tokens never reached the episode."""
CLAIM_LOST = "claim lost"
CELL_ENDED = "cell ended"


class TokenTally:
    """Follows every episode of one incarnation of a cell."""

    def __init__(
        self,
        cell: str,
        incarnation: str,
        engine: Engine,
        *,
        requests: Callable[[], int],
        claim_wait_s: Callable[[], float],
    ) -> None:
        """Begin with nothing sampled.

        Args:
            cell: The cell.
            incarnation: This start of its process.
            engine: Its engine, which has sampled nothing for anybody else.
            requests: How many requests to the store this process has sent.
            claim_wait_s: How long the cell has stood without an episode because of claims, in seconds.
        """
        self.incarnation = incarnation
        self._cell = cell
        self._engine = engine
        self._requests, self._claim_wait_s = requests, claim_wait_s
        self._playing: set[Episode] = set()
        self._finished: Counter[tuple[int, int]] = Counter()
        self._thrown_away: Counter[str] = Counter()
        self._delivered = 0
        self._probed = 0
        self._sequence = 0
        self._ticks = 0

    def continue_at(self, sequence: int) -> None:
        """The cell's next object has this number."""
        self._sequence = sequence

    def begin(self, episode: Episode) -> None:
        """An episode begins."""
        self._playing.add(episode)

    def finish(self, episode: Episode) -> None:
        """An episode has ended in a trajectory, which waits for the rest of its group."""
        self._playing.remove(episode)
        self._finished[episode.spec.group, episode.spec.attempt] += episode.sampled_tokens

    def throw_away(self, episode: Episode, reason: str) -> None:
        """An episode that was begun has ended, and its trajectory is of no use."""
        self._playing.remove(episode)
        self._thrown_away[reason] += episode.sampled_tokens

    def probe(self, episode: Episode) -> None:
        """An episode of a probe group has ended, in whatever way: nothing trains on it."""
        self._playing.remove(episode)
        self._probed += episode.sampled_tokens

    def drop(self, group: int, attempt: int, reason: str) -> None:
        """A group will not be completed: its finished trajectories are of no use."""
        self._thrown_away[reason] += self._finished.pop((group, attempt), 0)

    def written(self, groups: Iterable[Group]) -> None:
        """The cell's next object, with these groups, is in the store."""
        self._sequence += 1
        for group in groups:
            self._delivered += self._finished.pop(_identity(group), 0)

    def account(self, delivering: Sequence[Group] = ()) -> CellAccount:
        """Take an account; `delivering` are the groups of the object that will carry it."""
        self._ticks += 1
        status = self._engine.status()
        going = sum(self._finished[_identity(group)] for group in delivering)
        in_episodes = sum(episode.sampled_tokens for episode in self._playing)
        thrown_away = self._thrown_away + Counter({UNFINISHED_TURN: status.discarded_tokens})
        return CellAccount(
            cell=self._cell,
            incarnation=self.incarnation,
            sequence=self._sequence + (1 if delivering else 0),
            tick=self._ticks,
            generated=status.generated_tokens,
            delivered=self._delivered + going,
            in_flight=status.in_flight_tokens + in_episodes + self._finished.total() - going,
            probe=status.scored_tokens + self._probed,
            cancelled=dict(sorted(thrown_away.items())),
            store_requests=self._requests(),
            claim_wait_s=self._claim_wait_s(),
        )


def _identity(group: Group) -> tuple[int, int]:
    first: Trajectory = group.trajectories[0]
    return group.number, first.attempt
