"""What all commands share: where they print, and how a known error ends them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer
from rich.console import Console

from driftline.errors import ConfigurationError, DriftlineError

P = ParamSpec("P")

console = Console(soft_wrap=True, highlight=False)
complaints = Console(stderr=True, soft_wrap=True, highlight=False)


def known_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a `DriftlineError` into one message and an exit code: 2 for a wrong setting, else 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except DriftlineError as error:
            complaints.print(f"[bold red]{type(error).__name__}[/]: ", end="")
            complaints.print(str(error), markup=False)
            raise typer.Exit(2 if isinstance(error, ConfigurationError) else 1) from error

    return run
