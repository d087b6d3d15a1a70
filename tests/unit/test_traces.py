"""The shape of a recorded episode, and the file that holds many of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline import traces
from driftline.errors import ConfigurationError, CorruptObject
from driftline.records import EpisodeSeconds, Trajectory
from driftline.traces import EpisodeShape, decode_trace, encode_trace, groups_of, shape_of
from tests.support.records import trajectory

P, E, S = False, False, True
"""Of the prompt, of the environment, sampled."""


def recorded(**changes: Any) -> Trajectory:
    """Two turns of 3 and 1 tokens after a prompt of 2, with 4 observed between them."""
    mask = (P, P, S, S, S, E, E, E, E, S)
    return trajectory(
        **{
            "token_ids": tuple(range(len(mask))),
            "loss_mask": mask,
            "logprobs": (0.0,) * len(mask),
            "turns": 2,
            "request_seconds": ((10.0, 11.0), (11.0, 11.25), (11.5, 12.0), (12.0, 12.75)),
            "seconds": EpisodeSeconds(resetting=0.1234567, in_tools=0.25, in_reward=0.5),
            "reward": 0.5,
        }
        | changes
    )


def shape(group: int = 0, member: int = 0, **changes: Any) -> EpisodeShape:
    base: dict[str, Any] = {
        "prompt_tokens": 2, "sampled_tokens": (3, 1), "observation_tokens": (4, 0), "tool_seconds": (0.25, 0.25),
        "reset_seconds": 0.123457, "reward_seconds": 0.5, "reward": 0.5, "environment": "pointer_chase/v1",
        "source": "run r",
    }  # fmt: skip
    return EpisodeShape(group=group, member=member, **(base | changes))


def test_the_shape_of_an_episode_by_hand() -> None:
    found = shape_of(recorded(), "run r")
    assert found == shape()
    assert (found.turns, found.total_tokens) == (2, 10)
    assert found.environment_seconds == pytest.approx(1.123457)


def test_an_episode_that_ends_in_a_tool_call_without_reward() -> None:
    found = shape_of(recorded(seconds=EpisodeSeconds(in_tools=1.0), reward=None, status="truncated"), "run r")
    assert found.tool_seconds == (0.25, 0.75)
    assert (found.reward_seconds, found.reward) == (0.0, None)


def test_a_clock_that_was_set_back_gives_no_negative_seconds() -> None:
    intervals = ((10.0, 11.0), (11.0, 10.5), (11.5, 12.0), (12.0, 12.75))
    assert shape_of(recorded(request_seconds=intervals), "run r").tool_seconds == (0.0, 0.25)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "timeout"}, "ended as timeout"),
        ({"status": "cancelled"}, "ended as cancelled"),
        ({"turns": 3}, "by its loss mask"),
        ({"loss_mask": (S,) * 10}, "by its loss mask"),
        ({"turns": 0, "loss_mask": (), "request_seconds": ()}, "by its loss mask"),
        ({"request_seconds": ()}, "by its intervals"),
        ({"request_seconds": ((10.0, 11.0),) * 5}, "by its intervals"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        shape_of(recorded(**changes), "run r")


@st.composite
def any_trace(draw: st.DrawFn) -> tuple[EpisodeShape, ...]:
    counts, seconds = st.integers(1, 50), st.floats(0, 100).map(traces.rounded)
    made: list[EpisodeShape] = []
    for group in draw(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True)):
        for member in range(draw(st.integers(1, 3))):
            turns = draw(st.integers(1, 4))
            lists = partial(st.lists, min_size=turns, max_size=turns)
            observed = draw(st.lists(st.integers(0, 20), min_size=turns - 1, max_size=turns - 1))
            made.append(
                shape(
                    group,
                    member,
                    prompt_tokens=draw(counts),
                    sampled_tokens=tuple(draw(lists(counts))),
                    observation_tokens=(*observed, 0),
                    tool_seconds=tuple(draw(lists(seconds))),
                    reward=draw(st.none() | st.floats(-1, 1)),
                    source=draw(st.text(max_size=5)),
                )
            )
    return tuple(made)


@settings(max_examples=50, deadline=None)
@given(any_trace(), st.randoms())
def test_a_file_gives_back_the_trace_and_is_the_same_in_any_order(trace: tuple[EpisodeShape, ...], rng: Any) -> None:
    body = encode_trace(trace)
    found = decode_trace(body, "t")
    assert list(found) == sorted(trace, key=lambda one: (one.group, one.member))
    shuffled = list(trace)
    rng.shuffle(shuffled)
    assert encode_trace(shuffled) == body
    assert [len(members) for members in groups_of(trace)] == [len(members) for members in groups_of(found)]


def line(**changes: Any) -> bytes:
    return json.dumps(asdict(shape()) | changes).encode() + b"\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no episode"),
        (line() + b"{", "line 2 of t is not JSON"),
        (line(format=2), "newer format 2"),
        (line(prompt_tokens="many"), "line 1 of t is not a EpisodeShape"),
        (line(prompt_tokens=0), "at least one token"),
        (line(sampled_tokens=[3, 0]), "at least one token"),
        (line(tool_seconds=[0.1]), "2 turns with 2 observations and 1 tool calls"),
        (line(tool_seconds=[0.1, -0.1]), "not negative"),
        (line(tool_seconds=[0.1, float("nan")]), "finite"),
        (line(observation_tokens=[4, 4]), "the last one has none"),
        (line(sampled_tokens=[], observation_tokens=[], tool_seconds=[]), "at least one turn"),
        (line(member=1), r"members \[1\]"),
        (line() + line(), r"members \[0, 0\]"),
        (json.dumps({"group": 0}).encode(), "Field required"),
    ],
)
def test_a_damaged_file_says_what_is_wrong_with_it(body: bytes, says: str) -> None:
    with pytest.raises(CorruptObject, match=says):
        decode_trace(body, "t")


def test_a_trace_file_never_changes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    digest = traces.write(path, [shape()])
    assert digest == traces.digest(path.read_bytes())
    with pytest.raises(ConfigurationError, match="never changes"):
        traces.write(path, [shape(prompt_tokens=3)])
    assert traces.load(path) == (shape(),)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        traces.load(tmp_path / "none.jsonl")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        traces.write(tmp_path / "none" / "t.jsonl", [shape()])
