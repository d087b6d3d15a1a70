"""What the adapter uses of Gymnasium, without it: a corridor of five places, with faults that are asked for by name.

The real package is in tests/integration/test_adapters_for_real.py.
"""

from __future__ import annotations

import string
from random import Random
from types import SimpleNamespace
from typing import Any


class Discrete:
    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start


class Text:
    def __init__(self, max_length: int, min_length: int = 1, charset: str = string.ascii_letters) -> None:
        self.min_length, self.max_length = min_length, max_length
        self.characters = "".join(sorted(charset))

    def contains(self, value: Any) -> bool:
        return self.min_length <= len(value) <= self.max_length and set(value) <= set(self.characters)


class Box:
    pass


class Corridor:
    """Walk to place 4; which place one begins at is drawn from the seed."""

    metadata = {"render_modes": ("ansi",)}  # noqa: RUF012 (as Gymnasium has it)
    closed = 0

    def __init__(self, spec: Any, render_mode: str | None = None, fault: str = "", limit: int = 50) -> None:
        self.spec, self.render_mode, self.fault, self.limit = spec, render_mode, fault, limit
        self.action_space: Any = Discrete(2)
        self.observation_space = Discrete(5)
        self.place, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        if self.fault == "reset":
            raise OSError("no such file")
        self.steps = 0
        self.place = Random(seed).randrange(3) if options is None else options["place"]
        return self.place, {}

    def step(self, action: int) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        if self.fault == "step":
            raise RuntimeError("broken")
        self.steps += 1
        self.place = max(0, self.place + (1 if action else -1))
        there = self.place == 4
        reward = float("nan") if self.fault == "reward" else 1.0 if there else -0.125
        info = {"is_success": False} if self.fault == "says no" else {}
        return self.place, reward, there, not there and self.steps >= self.limit, info

    def render(self) -> str:
        return "".join("\x1b[41m.\x1b[0m" if place == self.place else "." for place in range(5))

    def close(self) -> None:
        Corridor.closed += 1


SPEC = SimpleNamespace(id="Corridor-v0", entry_point="tests.support.fake_gymnasium:Corridor", reward_threshold=0.5)
spaces = SimpleNamespace(Text=Text, Discrete=Discrete)


def spec(name: str) -> Any:
    if name != SPEC.id:
        raise LookupError(f"environment `{name}` doesn't exist. Did you mean: `Corridor`?")
    return SPEC


def make(name: str, *, disable_env_checker: bool, **kwargs: Any) -> Corridor:
    assert disable_env_checker
    return Corridor(spec(name), **kwargs)
