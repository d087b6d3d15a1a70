"""How many episodes a cell keeps in flight: as many as its engine bears, found by the engine's own pressure.

    engine.status ─▶ Pressure ─▶ `adjusted` ─▶ limit ─▶ what the collector may start

What an engine bears depends on the length of contexts, on what episodes share, and on how long they are in tools
and hold no cache. No constant knows that; the engine does. The rule is that of congestion control: grow
while nothing is in the way, by a quarter until the first sign of pressure and by a sixteenth after it; cut back by a
fifth when requests were preempted, for each of them computes its context twice.

| the engine | the limit |
|---|---|
| preempted requests since the last look | is cut by a fifth, at once, and rests for `REST_LOOKS` looks |
| would fill its KV cache beyond `KV_FULL` with the growth | stays |
| has more requests waiting than an eighth of those running | stays: more in flight would only wait, and grow old |
| has room, and the limit is what holds the cell back | grows |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from driftline.engine.protocol import Engine
from driftline.params import RunParameters

PERIOD_S = 0.2
"""Seconds between two looks at the engine: a few of its steps."""
KV_FULL = 0.9
"""Share of the KV cache up to which the limit grows; what is running grows by itself."""
WAITING_SHARE = 1 / 8
"""A queue of this share of the running requests keeps every engine step full."""
CUT = 0.8
GROWTH_FIRST, GROWTH_LATER = 1 / 4, 1 / 16
REST_LOOKS = 5
"""Looks after a cut in which nothing changes: what was cut ends by itself, which takes a while."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the limit stays within, in episodes."""

    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """The engine at one look."""

    in_flight: int
    """Episodes, those in tools among them."""
    running: int
    """Requests in the engine's steps."""
    waiting: int
    """Requests that the engine has not begun."""
    kv_cache_share: float
    """Of its blocks in use, in [0, 1]."""
    preempted: int
    """Requests preempted since the look before."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many episodes may be in flight, and what is remembered for the next look."""

    episodes: int
    pressed: bool = False
    """Whether there ever was pressure: growth is careful from then on."""
    rest: int = 0
    """Looks for which nothing changes."""


def adjusted(limit: Limit, pressure: Pressure, bounds: Bounds) -> Limit:
    """The limit after a look at the engine; always within the bounds. Pure.

    Args:
        limit: What holds so far.
        pressure: What the look has shown.
        bounds: What it stays within.
    """
    if limit.rest:
        return replace(limit, rest=limit.rest - 1)
    if pressure.preempted:
        # What is beyond the limit already is not what was preempted: cut from what is really there.
        episodes = int(CUT * min(limit.episodes, pressure.in_flight))
        return Limit(_within(episodes, bounds), pressed=True, rest=REST_LOOKS)
    if pressure.in_flight < limit.episodes or pressure.waiting > WAITING_SHARE * pressure.running:
        return limit
    growth = max(1, int(limit.episodes * (GROWTH_LATER if limit.pressed else GROWTH_FIRST)))
    if pressure.kv_cache_share * (1 + growth / limit.episodes) > KV_FULL:
        return replace(limit, pressed=True)
    return replace(limit, episodes=_within(limit.episodes + growth, bounds))


class Slots:
    """The episodes that a cell may have in flight."""

    def __init__(self, engine: Engine, bounds: Bounds, *, begin: int, in_flight: Callable[[], int]) -> None:
        """Begin at a limit.

        Args:
            engine: Whose pressure decides.
            bounds: What the limit stays within; equal bounds keep it fixed.
            begin: The first limit, moved into the bounds.
            in_flight: How many episodes are in flight now.
        """
        self._engine = engine
        self._bounds = bounds
        self._in_flight = in_flight
        self._limit = Limit(_within(begin, bounds))
        self._preemptions = engine.status().preemptions

    @property
    def limit(self) -> int:
        """Episodes that may be in flight."""
        return self._limit.episodes

    @property
    def free(self) -> int:
        """Episodes that may begin now."""
        return max(0, self.limit - self._in_flight())

    def look(self) -> bool:
        """Look at the engine once; whether more may begin than before."""
        status, before = self._engine.status(), self._limit.episodes
        preempted = max(0, status.preemptions - self._preemptions)
        self._preemptions = status.preemptions
        pressure = Pressure(self._in_flight(), status.running, status.waiting, status.kv_cache_share, preempted)
        self._limit = adjusted(self._limit, pressure, self._bounds)
        return self._limit.episodes > before

    async def adapt(self, on_growth: Callable[[], None]) -> None:
        """Look at the engine again and again, for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if self.look():
                on_growth()


def slots_of(parameters: RunParameters, engine: Engine, in_flight: Callable[[], int]) -> Slots:
    """The slots of a cell, as its parameters have them: as many as its engine runs at once, to begin with."""
    rollout = parameters.rollout
    most = rollout.episodes_in_flight
    lowest = most if rollout.concurrency == "fixed" else min(rollout.group_size, most)
    begin = parameters.engine.max_num_seqs * parameters.engine.replicas
    return Slots(engine, Bounds(lowest, most), begin=begin, in_flight=in_flight)


def _within(episodes: int, bounds: Bounds) -> int:
    return min(max(episodes, bounds.lowest), bounds.highest)
