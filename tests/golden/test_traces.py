"""The committed traces, by their digests: an arm that is measured on one of them is measured on this one."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from driftline import traces
from environments.trace_replay import POINTER_CHASE, published_tail

TRACES = Path(published_tail.__file__).parent / "traces"
DIGESTS = {
    0.5: "e142d65b5e36a3dab3e69686b7beda141721430bcf215820ac7b660fddc07acd",
    0.9: "8ebf217f9dc157d36377b14c3db8d60d4bef9b350ebb368bfc9c039b116f6a09",
    1.3: "85772e69e29cd6a5dad6b0703a4d76eaf691552f7bcca7528f771bedba6f582f",
}

RECORDED = "9a19f63112a2cb2c3524070524d8fbc6f9a2a0b9878d1e8a8b9a14a170f0d5fe"


@pytest.mark.parametrize("sigma", DIGESTS)
def test_what_the_generator_draws(sigma: float) -> None:
    body = traces.encode_trace(published_tail.generate(sigma=sigma))
    assert traces.digest(body) == DIGESTS[sigma]


def test_the_committed_trace_is_what_the_generator_draws() -> None:
    path = TRACES / "published_tail.jsonl"
    assert traces.digest(path.read_bytes()) == DIGESTS[0.9]
    assert traces.load(path) == published_tail.generate()


def test_its_shape_is_what_it_says() -> None:
    trace = published_tail.generate()
    assert [len(members) for members in traces.groups_of(trace)] == [8] * 64
    turns = [shape.turns for shape in trace]
    long = [count for count in turns if count >= 12]
    short = [count for count in turns if count <= 10]
    assert len(long) + len(short) == 512
    assert len(long) == pytest.approx(51.2, abs=3 * math.sqrt(512 * 0.1 * 0.9))
    assert (min(long), max(long), max(short)) == (12, 20, 10)
    # A geometric number with mean 3 that is cut at 10 has mean 3 (1 - (2/3)^10).
    assert statistics.mean(short) == pytest.approx(3 * (1 - (2 / 3) ** 10), abs=0.35)
    tokens = [count for shape in trace for count in shape.sampled_tokens]
    assert set(tokens) == set(range(3, 9))
    assert statistics.mean(tokens) == pytest.approx(5.5, abs=0.15)
    tools = [seconds for shape in trace for seconds in shape.tool_seconds]
    assert statistics.median(tools) == pytest.approx(0.02, rel=0.1)
    assert statistics.pstdev(map(math.log, tools)) == pytest.approx(0.9, rel=0.05)


def test_traces_of_different_sigma_have_the_same_episodes() -> None:
    narrow, wide = published_tail.generate(sigma=0.5), published_tail.generate(sigma=1.3)
    for one, other in zip(narrow, wide, strict=True):
        assert (one.sampled_tokens, one.observation_tokens) == (other.sampled_tokens, other.observation_tokens)
        order = sorted(range(one.turns), key=one.tool_seconds.__getitem__)
        assert order == sorted(range(one.turns), key=other.tool_seconds.__getitem__)


def test_the_first_groups_do_not_depend_on_how_many_are_drawn() -> None:
    assert published_tail.generate(groups=3) == published_tail.generate()[:24]


def test_the_recorded_trace() -> None:
    path = TRACES / "pointer_chase.jsonl"
    assert traces.digest(path.read_bytes()) == RECORDED
    groups = traces.groups_of(traces.load(path))
    assert [len(members) for members in groups] == [8] * 64
    assert {shape.environment for members in groups for shape in members} == {"pointer_chase/v1"}
    assert {shape.prompt_tokens for members in groups for shape in members} == {4}
    assert len(POINTER_CHASE.generate(0, 64)) == 64
