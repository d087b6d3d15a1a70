"""Measured divergence, as records carry it: of tokens, of members, and its cause. Part of `records`.

How the figures come about is `driftline.divergence`'s business; who only reads them needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

LOG_RATIO_LIMIT = 20.0
"""Largest |log ratio| in nats that is exponentiated; e^20 is 4.9e8."""

FLOOR_K3_NATS = {"float32": 1e-6, "bfloat16": 1e-3}
"""Most k3 a token that equal weights show between engine and trainer, by the coarser arithmetic, with room."""
PROBE_NATS = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest difference of a log-probability that equal weights show between the two. In bfloat16 the measured floor of
a small model is 0.036 at most."""

K3_SHARES = (0.5, 0.9, 0.99)
"""Quantiles of the members' k3 that are shown: of what is never negative, the upper tail is far off."""
RATIO_SHARES = (0.01, 0.5, 0.99)
"""Those of their ratios: a member may have become far less likely, or far more."""

Verdict = Literal["keep", "down_weight", "drop"]
"""What admission makes of a member."""
Reason = Literal["", "age", "k3", "ess", "not_finite", "invalid"]
"""Why; empty where it is kept."""
Cause = Literal["healthy", "engine mismatch", "staleness", "failed weight sync"]
"""What a diagnosis names."""


@dataclass(frozen=True, slots=True)
class DivergenceSummary:
    """Estimates over `tokens` sampled tokens; `k1`, `k2`, `k3` in nats a token."""

    tokens: int
    k1: float
    k2: float
    k3: float
    total_variation: float
    chi_square: float
    ess_fraction: float
    ratio_mean: float
    k3_error: float = 0.0
    """Standard error of `k3`, as if tokens were independent; 0 for fewer than two."""

    @property
    def ess(self) -> float:
        """Effective sample size of raw weights, in tokens."""
        return self.ess_fraction * self.tokens

    @property
    def geometric_mean_ratio(self) -> float:
        """Geometric mean of the tokens' ratios."""
        return math.exp(_within_limit(-self.k1))

    @property
    def sequence_ratio(self) -> float:
        """Product of the tokens' ratios: of the whole sequence, where the tokens are one."""
        return math.exp(_within_limit(-self.k1 * self.tokens))


NOTHING = DivergenceSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
"""Without tokens the two policies count as equal."""


def pooled(parts: Iterable[DivergenceSummary]) -> DivergenceSummary:
    """The summary of all tokens of some summaries; exact, as each of them is a function of sums over tokens."""
    found = [part for part in parts if part.tokens]
    tokens = sum(part.tokens for part in found)
    if tokens == 0:
        return NOTHING

    def mean(values: Iterable[float]) -> float:
        return sum(value * part.tokens for value, part in zip(values, found, strict=True)) / tokens

    k3 = mean(part.k3 for part in found)
    k3_squares = mean(part.k3_error * part.k3_error * (part.tokens - 1) + part.k3 * part.k3 for part in found)
    ratio, squares = mean(part.ratio_mean for part in found), mean(_mean_square(part) for part in found)
    return DivergenceSummary(
        tokens=tokens,
        k1=mean(part.k1 for part in found),
        k2=mean(part.k2 for part in found),
        k3=k3,
        total_variation=mean(part.total_variation for part in found),
        chi_square=squares - 1,
        ess_fraction=min(1.0, ratio * ratio / squares) if squares else 0.0,
        ratio_mean=ratio,
        k3_error=math.sqrt(max(0.0, k3_squares - k3 * k3) / (tokens - 1)) if tokens > 1 else 0.0,
    )


def _mean_square(part: DivergenceSummary) -> float:
    """Mean of the tokens' squared ratios; not by chi-square, in which what is far below 1 is rounded away."""
    if not part.ess_fraction:
        return part.chi_square + 1
    return part.ratio_mean * part.ratio_mean / part.ess_fraction


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """What one policy version sampled of a member, against the policy that trained on it."""

    start: int
    """Index of the segment's first token in the trajectory."""
    version: int
    tokens: int
    """Sampled ones."""
    k1: float
    """Nats a token, as `k3`."""
    k3: float
    ess_fraction: float


@dataclass(frozen=True, slots=True)
class MemberUse:
    """How one member of a group entered a step, or why it did not."""

    member: int
    cell: str
    verdict: Verdict
    reason: Reason
    weight: float
    """In [0, 1]: what admission multiplied its advantage by; 0 where it was dropped."""
    sampled_tokens: int
    masked_tokens: int
    """Of these, what a correction or the mask of negative sequences took out of the step."""
    seconds: float
    """From the start of its episode to the end."""
    segments: tuple[SegmentUse, ...]
    """Where it was scored: in order of their versions."""
    turns: int = 0
    trained_tokens: int = 0
    """Sampled ones that entered the loss: not masked, and with a context; counted where the loss is computed."""
    masked_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """`masked_tokens`, by what masked them: `correction` or `negative sequence`."""

    @property
    def counted(self) -> bool:
        """Whether it was in its group's statistics: it has a reward, and its log-probabilities are numbers."""
        return self.reason not in ("invalid", "not_finite")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause of a run's divergence, and the figures behind it."""

    cause: Cause
    why: str
    """One sentence with the figures."""
    figures: Mapping[str, float]
    """By name and unit; what was not measured is absent."""
    engine: str = ""
    """The engine at fault, for a failed weight sync."""


def _within_limit(log_ratio: float) -> float:
    return min(LOG_RATIO_LIMIT, max(-LOG_RATIO_LIMIT, log_ratio))
