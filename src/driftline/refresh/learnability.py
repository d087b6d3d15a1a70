"""What is learned from a task, by how often tasks like it are solved. Pure.

A group teaches by the variance of its rewards, p (1 - p) where its members succeed with probability p: nothing is
learned of a task that is always solved, or never (learnability: Tzannetos et al. 2023, Rutherford et al. 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from driftline.refresh import strata

PRIOR_EPISODES = 0.5
"""Of each outcome, before anything is known (Jeffreys)."""
SHARPNESS = 3.0
"""Power of the learnability: many strata that teach little shall not together outweigh the few that teach."""
DECIMALS = 5

Counts = tuple[float, float]
"""Episodes, and how many of them succeeded."""


def learnability(share: float) -> float:
    """How much is learned from a task, in (0, 1], that is solved at a rate in [0, 1]."""
    return max(10.0**-DECIMALS, round((4 * share * (1 - share)) ** SHARPNESS, DECIMALS))


UNSEEN = learnability(0.5)


def expected_rate(counts: Counts) -> float:
    """Expected solve rate, in (0, 1), where so many of so many episodes succeeded."""
    return (counts[1] + PRIOR_EPISODES) / (counts[0] + 2 * PRIOR_EPISODES)


def of_levels(counts: Sequence[Counts]) -> list[float]:
    """Learnability of each level, from the easiest on.

    Solve rates do not rise with the level: where counts say otherwise, levels are taken together until they do not
    (isotonic regression, by pooling adjacent violators). So a level that was hardly played is judged by the others.
    """
    blocks: list[tuple[Counts, int]] = []
    for attempts, solved in counts:
        block, size = (attempts + 2 * PRIOR_EPISODES, solved + PRIOR_EPISODES), 1
        while blocks and blocks[-1][0][1] * block[0] < block[1] * blocks[-1][0][0]:
            (tried, won), of_before = blocks.pop()
            block, size = (block[0] + tried, block[1] + won), size + of_before
        blocks.append((block, size))
    return [learnability(solved / attempts) for (attempts, solved), size in blocks for _ in range(size)]


def of_strata(seen: Mapping[str, Counts]) -> dict[str, float]:
    """Stratum -> learnability of its tasks, sorted by name.

    Args:
        seen: Stratum -> counts, of every stratum that was seen.
    """
    found = {stratum: learnability(expected_rate(counts)) for stratum, counts in seen.items()}
    graded: dict[str, list[tuple[int, str]]] = {}
    for stratum in seen:
        environment, level = strata.parts(stratum)
        if level is not None:
            graded.setdefault(environment, []).append((level, stratum))
    for of_environment in graded.values():
        names = [stratum for _, stratum in sorted(of_environment)]
        found |= zip(names, of_levels([seen[name] for name in names]), strict=True)
    return dict(sorted(found.items()))
