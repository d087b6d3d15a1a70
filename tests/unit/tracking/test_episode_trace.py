"""An episode, described for a reader."""

from __future__ import annotations

import pytest

from driftline.environment import Message
from driftline.records import Segment
from driftline.tracking.traces import episode_trace
from tests.support.tracking_records import trajectory

MESSAGES = [
    Message("user", "find x"),
    Message("assistant", ">ab"),
    Message("tool", "cd"),
    Message("assistant", "=cd"),
]
REQUESTS = ((100.0, 101.0), (101.0, 101.5), (101.5, 103.0), (103.0, 103.25))


def test_turns_and_tool_calls_in_order_with_their_times() -> None:
    found = episode_trace(trajectory(100, 104, request_seconds=REQUESTS), MESSAGES)
    assert [(s.name, s.kind, s.start_unix, s.end_unix) for s in found.spans] == [
        ("turn 0", "LLM", 100.0, 101.0),
        ("tool 0", "TOOL", 101.0, 101.5),
        ("turn 1", "LLM", 101.5, 103.0),
    ]
    first, tool, second = found.spans
    assert (first.inputs, first.outputs) == ([{"role": "user", "content": "find x"}], ">ab")
    assert (tool.inputs, tool.outputs) == (">ab", [{"role": "tool", "content": "cd"}])
    assert (second.inputs, second.outputs) == ([{"role": "tool", "content": "cd"}], "=cd")


def test_each_turn_says_who_sampled_it_and_how_likely_it_was() -> None:
    found = episode_trace(trajectory(100, 104), MESSAGES)
    assert dict(found.spans[0].attributes) == {"tokens": 2, "mean_logprob_nats": -0.5, "policy_versions": [4]}
    assert dict(found.spans[2].attributes) == {"tokens": 2, "mean_logprob_nats": -1.5, "policy_versions": [5]}


def test_a_turn_across_an_update_names_both_versions() -> None:
    found = episode_trace(trajectory(100, 104, segments=(Segment(0, 4), Segment(2, 5))), MESSAGES)
    assert found.spans[0].attributes["policy_versions"] == [4, 5]
    assert found.spans[2].attributes["policy_versions"] == [5]


def test_the_whole_carries_reward_versions_and_log_probability() -> None:
    found = episode_trace(trajectory(100, 104, group=7, member=3), MESSAGES)
    assert found.name == "group 7 member 3"
    assert (found.start_unix, found.end_unix, found.failed) == (100, 104, False)
    assert found.outputs == {"reward": 1.0, "success": True, "status": "ok"}
    assert found.attributes["policy_versions"] == [4, 5]
    assert found.attributes["policy_version"] == 5
    assert found.attributes["mean_logprob_nats"] == -1.0
    assert (found.attributes["tokens"], found.attributes["sampled_tokens"]) == (6, 4)


def test_without_matching_times_turns_are_spread_over_the_episode() -> None:
    found = episode_trace(trajectory(100, 106, request_seconds=REQUESTS[:1]), MESSAGES)
    assert [(s.start_unix, s.end_unix) for s in found.spans] == [(100, 102), (102, 104), (104, 106)]


def test_an_episode_that_failed_at_its_reset_is_described_too() -> None:
    nothing = {"token_ids": (), "loss_mask": (), "logprobs": (), "segments": (), "turns": 0}
    found = episode_trace(
        trajectory(100, 101, reward=None, success=None, status="env_error", reason="boom", **nothing), []
    )
    assert (found.failed, found.spans, found.attributes["policy_version"]) == (True, (), None)
    assert found.attributes["mean_logprob_nats"] is None


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_transcript_cut_anywhere_is_described(count: int) -> None:
    found = episode_trace(trajectory(100, 104, request_seconds=REQUESTS), MESSAGES[:count])
    assert len(found.spans) == count - 1
