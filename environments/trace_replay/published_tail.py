"""The trace `published_tail`: groups whose lengths and tool calls have a long tail.

    python -m environments.trace_replay.published_tail --out published_tail.jsonl [--sigma 0.9]

90% of the episodes have a geometric number of turns with mean 3, at most 10; 10% have 12 to 20. A turn has 3 to 8
sampled tokens and a tool call whose seconds are lognormal. What sigma changes is the spread of the tool calls alone:
traces of different sigma have the same episodes, turn for turn, and the same order of their tool calls. The committed
trace has sigma 0.9 and the seed below.

All is drawn from `Random.random`, the one method whose sequence Python promises to keep.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from random import Random
from statistics import NormalDist

from driftline.traces import EpisodeShape, rounded, write

NAME = "published_tail"
SEED = 20261129
GROUPS = 64
GROUP_SIZE = 8
MEAN_TURNS = 3
MOST_TURNS = 10
LONG_SHARE = 0.1
LONG_TURNS = (12, 20)
TOKENS_A_TURN = (3, 8)
TOOL_MEDIAN_S = 0.02
TOOL_SIGMA = 0.9
PROMPT_TOKENS = 4
OBSERVATION_TOKENS = 4
"""Both as in `pointer_chase/v1`."""
LEAST_UNIFORM = 2.0**-53
STANDARD_NORMAL = NormalDist()


def generate(
    *, seed: int = SEED, groups: int = GROUPS, group_size: int = GROUP_SIZE, sigma: float = TOOL_SIGMA
) -> tuple[EpisodeShape, ...]:
    """Draw the trace; a pure function of its arguments, and the first groups do not depend on their number.

    Every other member of a group earns 1, the others 0, so that no group is without variance.

    Args:
        seed: Of all draws.
        groups: Number of groups.
        group_size: Members of each.
        sigma: Of the logarithm of a tool call's seconds.
    """
    rng = Random(seed)
    source = f"{NAME} seed {seed} sigma {sigma:g}"
    return tuple(_draw(rng, group, member, sigma, source) for group in range(groups) for member in range(group_size))


def _draw(rng: Random, group: int, member: int, sigma: float, source: str) -> EpisodeShape:
    turns = _uniform(rng, *LONG_TURNS) if rng.random() < LONG_SHARE else _geometric(rng)
    drawn = [(_uniform(rng, *TOKENS_A_TURN), _tool_seconds(rng, sigma)) for _ in range(turns)]
    return EpisodeShape(
        group=group,
        member=member,
        prompt_tokens=PROMPT_TOKENS,
        sampled_tokens=tuple(tokens for tokens, _ in drawn),
        observation_tokens=(OBSERVATION_TOKENS,) * (turns - 1) + (0,),
        tool_seconds=tuple(seconds for _, seconds in drawn),
        reset_seconds=0.0,
        reward_seconds=0.0,
        reward=float(member % 2),
        environment=NAME,
        source=source,
    )


def _uniform(rng: Random, lowest: int, highest: int) -> int:
    return lowest + int(rng.random() * (highest - lowest + 1))


def _geometric(rng: Random) -> int:
    failures = math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / MEAN_TURNS)
    return min(MOST_TURNS, 1 + int(failures))


def _tool_seconds(rng: Random, sigma: float) -> float:
    deviate = STANDARD_NORMAL.inv_cdf(max(LEAST_UNIFORM, rng.random()))
    return rounded(TOOL_MEDIAN_S * math.exp(sigma * deviate))


def main() -> None:
    """Write the trace into a new file, and print its digest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sigma", type=float, default=TOOL_SIGMA, help="of the logarithm of a tool call's seconds")
    parser.add_argument("--out", type=Path, required=True, help="a new file")
    given = parser.parse_args()
    sys.stdout.write(write(given.out, generate(sigma=given.sigma)) + "\n")


if __name__ == "__main__":
    main()
