from __future__ import annotations

import pytest

from driftline.engine.protocol import Generation
from driftline.errors import EngineError
from driftline.records import Segment
from driftline.rollout.transcript import Transcript


def generation(ids: list[int], *segments: tuple[int, int], logprobs: int | None = None) -> Generation:
    count = len(ids) if logprobs is None else logprobs
    return Generation(
        tuple(ids),
        tuple(-0.1 * (n + 1) for n in range(count)),
        tuple(Segment(*segment) for segment in segments),
        "stop",
        0.0,
        0.0,
        0.0,
    )


def test_tokens_masks_and_segments_by_hand() -> None:
    transcript = Transcript()
    assert transcript.oldest_version is None
    transcript.observe([7, 8])
    transcript.sampled(generation([1, 2, 3], (0, 4), (2, 5)))
    transcript.observe([9])
    transcript.sampled(generation([4, 5], (0, 5)))
    transcript.observe([9])
    transcript.sampled(generation([6, 6, 6], (0, 5), (1, 8)))
    assert transcript.token_ids == [7, 8, 1, 2, 3, 9, 4, 5, 9, 6, 6, 6]
    assert transcript.loss_mask == [mark == "s" for mark in "oosssossosss"]
    assert transcript.logprobs == pytest.approx([0, 0, -0.1, -0.2, -0.3, 0, -0.1, -0.2, 0, -0.1, -0.2, -0.3])
    assert transcript.segments == [Segment(2, 4), Segment(4, 5), Segment(10, 8)]
    assert transcript.oldest_version == 4
    assert len(transcript) == 12


def test_an_empty_answer_adds_nothing() -> None:
    transcript = Transcript()
    transcript.sampled(generation([]))
    assert len(transcript) == 0
    assert transcript.segments == []


@pytest.mark.parametrize(
    "wrong",
    [generation([1, 2], (0, 1), logprobs=1), generation([1, 2]), generation([1, 2], (1, 1))],
)
def test_an_answer_whose_parts_do_not_fit_is_the_engines_failure(wrong: Generation) -> None:
    with pytest.raises(EngineError, match="the engine returned 2 tokens"):
        Transcript().sampled(wrong)
