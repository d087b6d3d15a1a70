"""How long an episode will take, and how many tokens it will sample, by what earlier ones took. Pure, no clock.

Four levels, from the general to the special: all episodes, those of the environment, those of the environment with
a prompt of about that length, those of the task. Each remembers its last episodes, and says quantiles of their
logarithms. A level that knows little leans on the one above it: with `n` episodes of its own its word counts
`n / (n + PRIOR_EPISODES)`. So a task never seen begins as its environment, and an environment never seen as all.

Memory is bounded: the least recently used tasks, prompt lengths and environments are forgotten.

What episodes took is known when they have ended, the short ones first: a predictor that has just begun knows too
few of the long ones, and says too little.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

QUANTILES = (0.1, 0.5, 0.9)
COVERED = QUANTILES[-1] - QUANTILES[0]
"""Share of episodes that should lie between the outer quantiles."""
PRIOR_EPISODES = 4
SHORTEST_S = 1e-4
FEWEST_TOKENS = 1
PROMPT_BUCKETS_AN_OCTAVE = 4

Basis = Literal["task", "prompt", "environment", "global"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is remembered: how many of a kind, and how many episodes of each."""

    environments: int = 64
    prompts: int = 256
    tasks: int = 2048
    general_window: int = 256
    """Of all episodes, and of an environment."""
    prompt_window: int = 64
    task_window: int = 16


@dataclass(frozen=True, slots=True)
class Work:
    """An episode before it begins."""

    task_id: str
    environment: str
    prompt_tokens: int | None = None
    """None where nobody has seen the task's prompt yet."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The quantiles `QUANTILES` of one quantity, in its own unit."""

    low: float
    middle: float
    high: float

    @property
    def mean(self) -> float:
        """Swanson's mean of three quantiles at 10, 50 and 90%: what many of the kind take, a share each."""
        return 0.3 * self.low + 0.4 * self.middle + 0.3 * self.high

    def rest(self, so_far: float) -> float:
        """What is left of something that has lasted `so_far`; past the outer quantile nothing is known, so 0."""
        return max(0.0, (self.mean if so_far < self.mean else self.high) - so_far)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of an episode."""

    seconds: Quantiles
    sampled_tokens: Quantiles
    basis: Basis
    """The most special level that knew anything."""
    episodes: int
    """Episodes that it knew."""


class Predictor:
    """Learns from episodes as they end."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._global = _Window(limits.general_window)
        self._environments = _Windows(limits.environments, limits.general_window)
        self._prompts = _Windows(limits.prompts, limits.prompt_window)
        self._tasks = _Windows(limits.tasks, limits.task_window)
        self._errors = {"seconds": _Error(), "sampled_tokens": _Error()}
        self._unpredicted = 0

    def predict(self, work: Work) -> Prediction | None:
        """What is expected of an episode; None while no episode at all is known."""
        if not len(self._global):
            return None
        seconds, tokens = self._global.logarithms
        basis, episodes = "global", len(self._global)
        for name, window in self._levels(work):
            if window is None or not len(window):
                continue
            basis, episodes = name, len(window)
            own_seconds, own_tokens = window.logarithms
            seconds = _shrunk(own_seconds, seconds, episodes)
            tokens = _shrunk(own_tokens, tokens, episodes)
        return Prediction(_quantiles(seconds), _quantiles(tokens), basis, episodes)

    def observe(self, work: Work, seconds: float, sampled_tokens: int, predicted: Prediction | None) -> None:
        """Learn what an episode took.

        Args:
            work: The episode; its prompt is known by now.
            seconds: From its start to its end.
            sampled_tokens: That the policy sampled.
            predicted: What `predict` said when it began: that, and not what would be said now, is held against it.
        """
        seconds, tokens = max(SHORTEST_S, seconds), max(FEWEST_TOKENS, sampled_tokens)
        if predicted is None:
            self._unpredicted += 1
        else:
            general_seconds, general_tokens = map(_quantiles, self._global.logarithms)
            self._errors["seconds"].add(predicted.seconds, general_seconds, seconds)
            self._errors["sampled_tokens"].add(predicted.sampled_tokens, general_tokens, tokens)
        value = math.log(seconds), math.log(tokens)
        self._global.add(value)
        self._environments.make(work.environment).add(value)
        if work.prompt_tokens is not None:
            self._prompts.make(_prompt_key(work.environment, work.prompt_tokens)).add(value)
        self._tasks.make(work.task_id).add(value)

    def error(self) -> Mapping[str, float]:
        """How wrong it has been so far, over all predicted episodes.

        `*_log_error` is the mean of |log(true / middle)| in nats, `*_bias` that of log(true / middle), `*_coverage`
        the share between the outer quantiles (`COVERED` would be right), `*_pinball` the mean pinball loss over
        the quantiles in seconds or tokens, and `*_skill` by which share that is smaller than what the quantiles of
        all episodes had lost: what it is worth to know task, prompt and environment. Without any predicted episode,
        counts alone.
        """
        counts = {"predicted": float(self._errors["seconds"].count), "unpredicted": float(self._unpredicted)}
        return counts | {
            f"{quantity}_{name}": value
            for quantity, error in self._errors.items()
            for name, value in error.figures().items()
        }

    def _levels(self, work: Work) -> list[tuple[Basis, _Window | None]]:
        prompt = None if work.prompt_tokens is None else _prompt_key(work.environment, work.prompt_tokens)
        return [
            ("environment", self._environments.find(work.environment)),
            ("prompt", None if prompt is None else self._prompts.find(prompt)),
            ("task", self._tasks.find(work.task_id)),
        ]


class _Window:
    """The last episodes of one kind: logarithms of seconds and tokens."""

    def __init__(self, size: int) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=size)
        self._quantiles: tuple[Sequence[float], Sequence[float]] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: tuple[float, float]) -> None:
        self._values.append(value)
        self._quantiles = None

    @property
    def logarithms(self) -> tuple[Sequence[float], Sequence[float]]:
        """Quantiles of the logarithms of seconds and of tokens."""
        if self._quantiles is None:
            seconds, tokens = zip(*self._values, strict=True)
            self._quantiles = _interpolated(seconds), _interpolated(tokens)
        return self._quantiles


class _Windows:
    """Windows by key; the least recently used ones are forgotten."""

    def __init__(self, most: int, size: int) -> None:
        self._most, self._size = most, size
        self._by_key: OrderedDict[Hashable, _Window] = OrderedDict()

    def find(self, key: Hashable) -> _Window | None:
        return self._by_key.get(key)

    def make(self, key: Hashable) -> _Window:
        window = self._by_key.setdefault(key, _Window(self._size))
        self._by_key.move_to_end(key)
        if len(self._by_key) > self._most:
            self._by_key.popitem(last=False)
        return window


class _Error:
    """Sums of what predictions of one quantity were off by."""

    def __init__(self) -> None:
        self.count = 0
        self._log = self._absolute_log = self._pinball = self._general_pinball = 0.0
        self._covered = 0

    def add(self, predicted: Quantiles, general: Quantiles, true: float) -> None:
        self.count += 1
        log_error = math.log(true / predicted.middle)
        self._log += log_error
        self._absolute_log += abs(log_error)
        self._covered += predicted.low <= true <= predicted.high
        self._pinball += pinball(predicted, true)
        self._general_pinball += pinball(general, true)

    def figures(self) -> Mapping[str, float]:
        if not self.count:
            return {}
        general = self._general_pinball
        return {
            "log_error": self._absolute_log / self.count,
            "bias": self._log / self.count,
            "coverage": self._covered / self.count,
            "pinball": self._pinball / self.count,
            "skill": 1.0 - self._pinball / general if general else 0.0,
        }


def pinball(said: Quantiles, true: float) -> float:
    """Mean pinball loss of the quantiles where `true` came: least, on average, for the true quantiles."""
    values = (said.low, said.middle, said.high)
    losses = [max(q * (true - value), (q - 1.0) * (true - value)) for q, value in zip(QUANTILES, values, strict=True)]
    return sum(losses) / len(losses)


def _prompt_key(environment: str, prompt_tokens: int) -> tuple[str, int]:
    return environment, int(PROMPT_BUCKETS_AN_OCTAVE * math.log2(max(1, prompt_tokens)))


def _shrunk(own: Sequence[float], general: Sequence[float], episodes: int) -> Sequence[float]:
    share = episodes / (episodes + PRIOR_EPISODES)
    return [share * mine + (1.0 - share) * theirs for mine, theirs in zip(own, general, strict=True)]


def _interpolated(values: Sequence[float]) -> Sequence[float]:
    """Quantiles of some values, linear between two of them."""
    ordered = sorted(values)
    found: list[float] = []
    for quantile in QUANTILES:
        place = quantile * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        found.append(ordered[below] + (place - below) * (ordered[above] - ordered[below]))
    return found


def _quantiles(logarithms: Sequence[float]) -> Quantiles:
    low, middle, high = map(math.exp, logarithms)
    return Quantiles(low, middle, high)
