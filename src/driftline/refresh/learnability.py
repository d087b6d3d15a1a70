"""What is learned from a task, by how often tasks like it are solved. Pure.

Nothing is learned from a group whose members all succeed, or all fail. Where each succeeds with probability p, the
rewards of n members differ with probability 1 - p^n - (1 - p)^n; and if they do, the group's advantages are as large,
whatever p is, since they are divided by the deviation of its rewards. So one success among eight teaches as much as
four. (By the variance p (1 - p) itself, "learnability", such tasks would hardly be played: with it the study of
docs/task-sets.md stood still before the longest chains.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from driftline.refresh import strata

PRIOR_EPISODES = 0.5
"""Of each outcome, before anything is known (Jeffreys)."""
SHARPNESS = 2.0
"""Power of the chance: many strata that seldom teach shall not together outweigh the few that do."""
MEMBERS = 8
"""Of a group, where a run's are not known."""
DECIMALS = 5

Counts = tuple[float, float]
"""Episodes, and how many of them succeeded."""


def learnability(share: float, members: int = MEMBERS) -> float:
    """Weight, in (0, 1), of a task that is solved at a rate in [0, 1]: the chance to learn, and what is left to learn."""
    chance = max(0.0, 1 - share**members - (1 - share) ** members)
    return max(10.0**-DECIMALS, round(chance**SHARPNESS * (1 - share), DECIMALS))


def expected_rate(counts: Counts) -> float:
    """Expected solve rate, in (0, 1), where so many of so many episodes succeeded."""
    return (counts[1] + PRIOR_EPISODES) / (counts[0] + 2 * PRIOR_EPISODES)


def of_levels(counts: Sequence[Counts], members: int = MEMBERS) -> list[float]:
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
    return [learnability(solved / attempts, members) for (attempts, solved), size in blocks for _ in range(size)]


def of_strata(seen: Mapping[str, Counts], members: int = MEMBERS) -> dict[str, float]:
    """Stratum -> learnability of its tasks, sorted by name.

    Args:
        seen: Stratum -> counts, of every stratum that was seen.
        members: Of a group.
    """
    found = {stratum: learnability(expected_rate(counts), members) for stratum, counts in seen.items()}
    graded: dict[str, list[tuple[int, str]]] = {}
    for stratum in seen:
        environment, level = strata.parts(stratum)
        if level is not None:
            graded.setdefault(environment, []).append((level, stratum))
    for of_environment in graded.values():
        names = [stratum for _, stratum in sorted(of_environment)]
        found |= zip(names, of_levels([seen[name] for name in names], members), strict=True)
    return dict(sorted(found.items()))
