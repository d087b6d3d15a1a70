"""A trace: the shape of episodes, without what was said in them. Pure, but for `load` and `write`.

A trace file is never changed once it is there. It has one line of JSON an episode, in the order of (group, member),
keys sorted. Not Parquet: that names the library that wrote it in every file, while the same trace here is the same
bytes for ever, so that a digest can hold it and a review can read it; traces are small, and DuckDB and pandas open
JSON lines as they are.

    {"environment":"pointer_chase/v1","format":1,"group":0,"member":0,"observation_tokens":[4,0],"prompt_tokens":4,
     "reset_seconds":0.0,"reward":1.0,"reward_seconds":0.0,"sampled_tokens":[4,4],"source":"run r",
     "tool_seconds":[0.02,0.01]}
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from driftline.codec import FORMAT, decode, encode
from driftline.errors import ConfigurationError, CorruptObject
from driftline.records import Trajectory

SECONDS_DIGITS = 6
"""Microseconds: finer than a sleep is exact."""


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """How much of everything one episode took. The lists have one entry a turn.

    Raises:
        ValueError: It could not be played.
    """

    group: int
    member: int
    prompt_tokens: int
    sampled_tokens: tuple[int, ...]
    observation_tokens: tuple[int, ...]
    """What the environment answered, up to where the policy speaks again; the last is 0, nobody reads it."""
    tool_seconds: tuple[float, ...]
    reset_seconds: float
    reward_seconds: float
    """After the last tool call."""
    reward: float | None
    environment: str
    """Where it was recorded, or what it was generated as."""
    source: str
    format: int = FORMAT

    def __post_init__(self) -> None:
        turns = len(self.sampled_tokens)
        if not turns or len(self.observation_tokens) != turns or len(self.tool_seconds) != turns:
            raise ValueError(
                f"{turns} turns with {len(self.observation_tokens)} observations and {len(self.tool_seconds)} tool "
                "calls: an episode has at least one turn, and each turn has both"
            )
        if self.group < 0 or self.member < 0 or self.prompt_tokens < 1 or min(self.sampled_tokens) < 1:
            raise ValueError("group and member count from 0, and a prompt and a turn have at least one token")
        if min(self.observation_tokens) < 0 or self.observation_tokens[-1]:
            raise ValueError("an observation has at least 0 tokens, and the last one has none")
        seconds = (*self.tool_seconds, self.reset_seconds, self.reward_seconds)
        if not all(math.isfinite(value) and value >= 0 for value in seconds):
            raise ValueError("seconds are finite and not negative")

    @property
    def turns(self) -> int:
        """Number of turns."""
        return len(self.sampled_tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole episode: the context it needs."""
        return self.prompt_tokens + sum(self.sampled_tokens) + sum(self.observation_tokens)

    @property
    def environment_seconds(self) -> float:
        """Seconds of reset, tools and reward."""
        return self.reset_seconds + sum(self.tool_seconds) + self.reward_seconds


def shape_of(trajectory: Trajectory, source: str) -> EpisodeShape:
    """The shape of a recorded episode.

    Turns are the runs of sampled tokens. An episode's measured intervals alternate between request and tool call; of
    the last call, what the trajectory has as seconds of reward is told apart.

    Raises:
        ValueError: It did not end by itself, or was recorded in a way that its turns cannot be told apart.
    """
    if trajectory.status not in ("ok", "truncated"):
        raise ValueError(f"a member ended as {trajectory.status}")
    runs = [(own, sum(1 for _ in run)) for own, run in groupby(trajectory.loss_mask)]
    if [own for own, _ in runs] != [False, True] * trajectory.turns or not runs:
        raise ValueError("a member's turns cannot be told apart by its loss mask")
    if len(trajectory.request_seconds) != 2 * trajectory.turns:
        raise ValueError("a member's tool calls cannot be told apart by its intervals")
    lengths = [length for _, length in runs]
    tools = [end - start for start, end in trajectory.request_seconds[1::2]]
    reward_seconds = min(trajectory.seconds.in_reward, tools[-1])
    tools[-1] -= reward_seconds
    return EpisodeShape(
        group=trajectory.group,
        member=trajectory.member,
        prompt_tokens=lengths[0],
        sampled_tokens=tuple(lengths[1::2]),
        observation_tokens=(*lengths[2::2], 0),
        tool_seconds=tuple(rounded(seconds) for seconds in tools),
        reset_seconds=rounded(trajectory.seconds.resetting),
        reward_seconds=rounded(reward_seconds),
        reward=trajectory.reward,
        environment=trajectory.environment,
        source=source,
    )


def rounded(seconds: float) -> float:
    """Seconds as a trace holds them: not negative, whatever the clock did."""
    return max(0.0, round(seconds, SECONDS_DIGITS))


def groups_of(trace: Iterable[EpisodeShape]) -> list[tuple[EpisodeShape, ...]]:
    """The episodes of a trace by group, groups and members in order.

    Raises:
        ValueError: There is none, or the members of a group do not count from 0 without a gap.
    """
    ordered = sorted(trace, key=lambda shape: (shape.group, shape.member))
    groups = [tuple(members) for _, members in groupby(ordered, key=lambda shape: shape.group)]
    for members in groups:
        numbers = [shape.member for shape in members]
        if numbers != list(range(len(members))):
            raise ValueError(f"group {members[0].group} has the members {numbers}: they count from 0, without a gap")
    if not groups:
        raise ValueError("there is no episode in it")
    return groups


def encode_trace(trace: Sequence[EpisodeShape]) -> bytes:
    """A trace as the bytes of its file.

    Raises:
        ValueError: It has no episodes, or groups with gaps.
    """
    return b"".join(encode(shape) + b"\n" for members in groups_of(trace) for shape in members)


def decode_trace(body: bytes, name: str) -> tuple[EpisodeShape, ...]:
    """Read a trace from the bytes of its file, called `name` in messages.

    Raises:
        CorruptObject: A line is no episode that could be played, or a group has gaps.
    """
    lines = enumerate(body.splitlines(), 1)
    shapes = tuple(decode(EpisodeShape, line, key=f"line {number} of {name}") for number, line in lines)
    try:
        groups_of(shapes)
    except ValueError as error:
        raise CorruptObject(f"{name} is no trace: {error}") from None
    return shapes


def load(path: Path) -> tuple[EpisodeShape, ...]:
    """Read a trace file.

    Raises:
        ConfigurationError: There is no such file.
        CorruptObject: It is no trace.
    """
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): give a trace file") from None
    return decode_trace(body, str(path))


def write(path: Path, trace: Sequence[EpisodeShape]) -> str:
    """Write a trace file; returns its digest.

    Raises:
        ConfigurationError: There is a file, or no folder for it.
    """
    body = encode_trace(trace)
    try:
        with path.open("xb") as file:
            file.write(body)
    except FileExistsError:
        raise ConfigurationError(f"{path} exists, and a trace never changes: choose another name") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return digest(body)


def digest(body: bytes) -> str:
    """SHA-256 of a trace's file, in hexadecimal digits."""
    return hashlib.sha256(body).hexdigest()
