"""A clock that a test moves."""


class Clock:
    """Unix seconds that stand still until `now` is set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
