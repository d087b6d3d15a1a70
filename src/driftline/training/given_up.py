"""What a trainer has given up: since its last step, in the whole run, and for divergence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from driftline.records import GiveUp, StepRecord
from driftline.training.batching import DIVERGED, Judged, count_failed


class GivenUp:
    """Follows the groups that are given up."""

    def __init__(self, records: Sequence[StepRecord], most_diverged: int) -> None:
        """Go on behind the last record.

        Args:
            records: All committed steps, in order.
            most_diverged: So many of those given up for their divergence are kept, the newest.
        """
        gone = [give_up for record in records for give_up in record.give_ups]
        self.failed = count_failed(gone)
        """Groups of the run that had too few valid members."""
        self.since_step: list[GiveUp] = []
        """Since the last committed step; the next record repeats them."""
        self.diverged: deque[Judged] = deque(maxlen=most_diverged)
        """Since the last step, because of their divergence."""

    def note(self, give_ups: Iterable[GiveUp]) -> None:
        """These are given up."""
        new = [*give_ups]
        self.since_step += new
        self.failed += count_failed(new)

    def note_diverged(self, given_up: Iterable[Judged]) -> bool:
        """Keep those of them that were given up for their divergence; returns whether there are any."""
        diverged = [judged for judged in given_up if (judged.reason or "").startswith(DIVERGED)]
        self.diverged.extend(diverged)
        return bool(diverged)

    def committed(self) -> None:
        """The step that repeats them is committed."""
        self.since_step = []
        self.diverged.clear()

    def __str__(self) -> str:
        """What of it an error says; empty where nothing was given up since the last step."""
        if not self.since_step:
            return ""
        return f" ({len(self.since_step)} given up, the last: {self.since_step[-1].reason})"
