"""The tokens of one episode as they come about. Pure.

The context of the next request is what was sampled, id for id, with the rendered observations between: nothing
is ever tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence

from driftline.engine.protocol import Generation
from driftline.errors import EngineError
from driftline.records import Segment


class Transcript:
    """Token ids, and which of them the policy sampled, with what log-probability and at which version."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.loss_mask: list[bool] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []
        self.sampled_tokens = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def oldest_version(self) -> int | None:
        """Policy version of the first sampled token, None before it."""
        return self.segments[0].version if self.segments else None

    def observe(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self.token_ids.extend(ids)
        self.loss_mask.extend([False] * len(ids))
        self.logprobs.extend([0.0] * len(ids))

    def drop_observation(self) -> None:
        """Forget what was observed after the last sampled token."""
        while self.loss_mask and not self.loss_mask[-1]:
            del self.token_ids[-1], self.loss_mask[-1], self.logprobs[-1]

    def sampled(self, generation: Generation) -> None:
        """Append what an engine sampled.

        Raises:
            EngineError: Tokens, log-probabilities and segments do not belong together.
        """
        if not generation.token_ids:
            return
        starts = [segment.start for segment in generation.segments]
        if len(generation.logprobs) != len(generation.token_ids) or starts[:1] != [0]:
            raise EngineError(
                f"the engine returned {len(generation.token_ids)} tokens with {len(generation.logprobs)} "
                f"log-probabilities and segments at {starts}"
            )
        for segment in generation.segments:
            if not self.segments or self.segments[-1].version != segment.version:
                self.segments.append(Segment(len(self.token_ids) + segment.start, segment.version))
        self.token_ids.extend(generation.token_ids)
        self.loss_mask.extend([True] * len(generation.token_ids))
        self.logprobs.extend(generation.logprobs)
        self.sampled_tokens += len(generation.token_ids)


def check_turn(generation: Generation, asked: int, stop_ids: Sequence[int]) -> None:
    """Refuse a turn that does not end as the engine says: shorter than asked, or longer, or by no stop id.

    Raises:
        EngineError: It is such a one. A policy whose turns are cut somewhere else would learn from what it never did.
    """
    sampled, how = len(generation.token_ids), generation.finish_reason
    if sampled == 0 and how != "abort":
        raise EngineError(f"the engine ended a turn by {how}, and sampled no token")
    if sampled > asked or (how == "length" and sampled != asked):
        raise EngineError(f"the engine ended a turn by {how} with {sampled} tokens, and {asked} were asked for")
    if how == "stop" and generation.token_ids[-1] not in stop_ids:
        raise EngineError(f"the engine ended a turn by stop at token {generation.token_ids[-1]}, which ends none")
