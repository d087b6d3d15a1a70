"""What commands share: where they print, how a known error ends them, and options of more than one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec

import typer
from rich.console import Console

from driftline.errors import ConfigurationError, DriftlineError

P = ParamSpec("P")
AutoPorts = Annotated[bool, typer.Option("--auto-ports", help="Take the next free port where one is taken.")]
StartDeadline = Annotated[float, typer.Option(help="Seconds after which a part that is not ready counts as failed.")]

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
