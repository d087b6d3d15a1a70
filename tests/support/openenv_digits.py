"""An environment on the real OpenEnv's server: find the number that the seed made, between 0 and 9.

uvicorn --app-dir tests/support openenv_digits:app
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Any

from openenv.core.env_server.http_server import create_app  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.interfaces import Environment  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.types import Action, Observation, State  # pyright: ignore[reportMissingImports]
from pydantic import field_validator

Guess = Enum("Guess", {f"D{number}": str(number) for number in range(10)} | {"ODD": "odd"}, type=str)


class Guessing(Action):
    guess: Guess

    @field_validator("guess")
    @classmethod
    def is_even_minded(cls, guess: Guess) -> Guess:
        """A rule that no schema tells."""
        if guess.value == "odd":
            raise ValueError("say a number")
        return guess


class Said(Observation):
    text: str


class Digits(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Said:
        self._number, self._state = Random(seed).randrange(10), State()
        return Said(text="Which digit?", metadata={"number": self._number})

    def step(self, action: Guessing, **more: Any) -> Said:
        self._state.step_count += 1
        guess = int(action.guess.value)
        if guess == self._number:
            return Said(text="That one.", reward=True, done=True, metadata={"success": True})
        return Said(text="More." if guess < self._number else "Less.", reward=-0.125)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Digits, Guessing, Said, env_name="digits", max_concurrent_envs=16)
