"""What is to be learned from a task, by how often tasks like it are solved. Pure.

Nothing is learned from a group whose members all succeed, or all fail. Where each succeeds with probability p, the
rewards of n members differ with probability 1 - p^n - (1 - p)^n; and if they do, the group's advantages are as large,
whatever p is, since they are divided by the deviation of its rewards. So one success among eight teaches as much as
seven, and there is more to gain by it: 1 - p. The weight is the product, the chance sharpened.

By p (1 - p) alone, the variance of rewards, most groups are of what is nearly learned, and the policy stands still
before what it solves once in twenty episodes (docs/task-sets.md).
"""

from __future__ import annotations

from bisect import bisect_right
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
    """Weight, in (0, 1), of a task that is solved at a rate in [0, 1]: the chance to learn times what is to learn."""
    chance = max(0.0, 1 - share**members - (1 - share) ** members)
    return max(10.0**-DECIMALS, round(chance**SHARPNESS * (1 - share), DECIMALS))


def expected_rate(counts: Counts) -> float:
    """Expected solve rate, in (0, 1), where so many of so many episodes succeeded."""
    return (counts[1] + PRIOR_EPISODES) / (counts[0] + 2 * PRIOR_EPISODES)


def of_levels(counts: Sequence[Counts], members: int = MEMBERS) -> list[float]:
    """Weight of each level, from the easiest on, by solve rates that do not rise with the level."""
    return [learnability(rate, members) for rate in level_rates(counts)]


def level_rates(counts: Sequence[Counts]) -> list[float]:
    """Expected solve rate of each level, from the easiest on.

    Where counts say that a harder level is solved more often, levels are taken together until they do not (isotonic
    regression, by pooling adjacent violators): one that was hardly played is judged by the others. One that was not
    played at all is expected to be solved as often as not, within what those around it allow.
    """
    played = [level for level, (attempts, _) in enumerate(counts) if attempts]
    blocks: list[tuple[Counts, int]] = []
    for level in played:
        block, size = (counts[level][0] + 2 * PRIOR_EPISODES, counts[level][1] + PRIOR_EPISODES), 1
        while blocks and blocks[-1][0][1] * block[0] < block[1] * blocks[-1][0][0]:
            (tried, won), of_before = blocks.pop()
            block, size = (block[0] + tried, block[1] + won), size + of_before
        blocks.append((block, size))
    fit = [solved / attempts for (attempts, solved), size in blocks for _ in range(size)]
    rates: list[float] = []
    for level in range(len(counts)):
        below = bisect_right(played, level)
        most, least = (fit[below - 1] if below else 1.0), (fit[below] if below < len(fit) else 0.0)
        rates.append(fit[below - 1] if below and played[below - 1] == level else min(most, max(least, 0.5)))
    return rates


def of_strata(seen: Mapping[str, Counts], members: int = MEMBERS) -> dict[str, float]:
    """Stratum -> weight of its tasks, sorted by name, for those that were seen, and for levels up to the highest one.

    Args:
        seen: Stratum -> counts.
        members: Of a group.
    """
    found = {stratum: learnability(expected_rate(counts), members) for stratum, counts in seen.items()}
    highest: dict[str, int] = {}
    for stratum in seen:
        environment, level = strata.parts(stratum)
        if level is not None:
            highest[environment] = max(level, highest.get(environment, 0))
    for environment, level in highest.items():
        names = [strata.of_level(environment, at) for at in range(level + 1)]
        found |= zip(names, of_levels([seen.get(name, (0.0, 0.0)) for name in names], members), strict=True)
    return dict(sorted(found.items()))
