"""Environments of the real Gymnasium: three that it ships, one of MiniGrid's, and one of Text alone."""

from __future__ import annotations

import string
from typing import Any

import gymnasium  # pyright: ignore[reportMissingImports]

from driftline.adapters.gymnasium import Gymnasium

MOVES = ("left", "down", "right", "up")


class Parrot(gymnasium.Env):
    """Say again what it said, three times."""

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Text(4, charset=string.ascii_lowercase)
        self.observation_space = gymnasium.spaces.Text(8, charset=string.ascii_lowercase)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 3
        return self._word(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.word)
        self.left -= 1
        return self._word(), reward, self.left == 0, False, {}

    def _word(self) -> str:
        self.word = "".join(self.np_random.choice(list(string.ascii_lowercase), 4))
        return self.word


gymnasium.register("driftline_tests/Parrot-v0", entry_point=Parrot, reward_threshold=3.0)

LAKE = Gymnasium("FrozenLake-v1", kwargs={"is_slippery": False}, actions=MOVES)
SLIPPERY = Gymnasium("FrozenLake-v1", actions=MOVES, name="slippery")
BLACKJACK = Gymnasium("Blackjack-v1", actions=("stick", "hit"))
GRID = Gymnasium(
    "minigrid:MiniGrid-Empty-5x5-v0",
    kwargs={"max_steps": 30},
    actions=("left", "right", "forward", "pickup", "drop", "toggle", "done"),
    solved_at=0.01,
)
PARROT = Gymnasium("driftline_tests/Parrot-v0")
