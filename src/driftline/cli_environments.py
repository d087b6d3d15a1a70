"""`driftline environments`: which task families there are, and whether they keep the contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from driftline.cli_shared import complaints, console, known_errors
from driftline.environment import ADAPTERS, GradedFamily, PlacedFamily, Registered, has_local, registered
from driftline.errors import ConfigurationError

if TYPE_CHECKING:
    from driftline.environment.checks import Report

COLOURS = {"ok": "green", "failed": "bold red", "not applicable": "dim"}

app = typer.Typer(help="Task families: which there are, and whether they keep the contract.", no_args_is_help=True)


@app.command("list")
@known_errors
def list_families(
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the list to this file.")] = None,
) -> None:
    """List the families that are known by their id: those of `environments` here, and installed ones."""
    _reach_working_directory()
    rows = [_described(known) for known in registered().values()]
    table = Table("id", "runs in", "levels", "found in")
    for row in rows:
        table.add_row(str(row["id"]), str(row["runs_in"]), "yes" if row["graded"] else "", str(row["found_in"]))
    console.print(table)
    adapted = ", ".join(f"{adapter}/..." for adapter in ADAPTERS)
    known = "1 environment" if len(rows) == 1 else f"{len(rows)} environments"
    console.print(f"{known}, and those that are adapted: {adapted}")
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=2) + "\n")


@app.command("check")
@known_errors
def check_families(
    names: Annotated[list[str] | None, typer.Argument(help="Ids, or paths such as my_package:MyFamily.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every family that is known by its id.")] = False,
    tasks: Annotated[int, typer.Option(help="Tasks of each family that are played.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Of tasks and episodes.")] = 7,
    deadline_s: Annotated[float, typer.Option(help="Of one call of an environment, in seconds.", min=0.001)] = 60.0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write what was found to this file.")] = None,
) -> None:
    """Play tasks of a family, and say what of the contract it does not keep; exit code 1 if there is anything."""
    _reach_working_directory()
    from driftline.environment.checks import check_all

    chosen = list(registered()) if every else list(dict.fromkeys(names or []))
    if every == bool(names):
        raise ConfigurationError("name environments to check, or say --all: see `driftline environments list`")
    reports = check_all(
        chosen, tasks=tasks, seed=seed, deadline_s=deadline_s, say=_say_all if len(chosen) == 1 else _say_in_short
    )
    if json_path is not None:
        json_path.write_text(json.dumps([report.as_json() for report in reports], indent=2) + "\n")
    failed = [report.name for report in reports if not report.ok]
    if failed:
        console.print(f"[bold red]{len(failed)} of {len(reports)} failed[/]: {', '.join(failed)}")
        raise typer.Exit(1)
    console.print(f"[green]{len(reports)} of {len(reports)} keep the contract[/]")


def _say_all(report: Report) -> None:
    """A table, and the remedies below it."""
    table = Table("check", "result", "detail", title=report.name, title_justify="left")
    for finding in report.findings:
        colour = COLOURS[finding.verdict]
        table.add_row(finding.check, f"[{colour}]{finding.verdict}[/]", finding.detail.replace("[", "\\["))
    console.print(table)
    for finding in report.failed:
        console.print(f"  {finding.check} → {finding.remedy}", markup=False)


def _say_in_short(report: Report) -> None:
    """One line for what keeps the contract, and a table for what does not."""
    if report.failed:
        _say_all(report)
        return
    idle = [finding.check for finding in report.findings if finding.verdict == "not applicable"]
    beside = f" (not applicable: {', '.join(idle)})" if idle else ""
    console.print(f"[green]ok[/] {report.name}{beside}", markup=True)


def _described(known: Registered) -> dict[str, str | bool]:
    try:
        family = known.load()
    except Exception as error:  # the policy: an installed package that is broken does not hide the others
        return {"id": known.id, "runs_in": "?", "graded": False, "found_in": f"{known.found_in}: {error}"}
    runs_in = family.runs_in if isinstance(family, PlacedFamily) else "thread"
    return {
        "id": known.id,
        "runs_in": runs_in,
        "graded": isinstance(family, GradedFamily),
        "found_in": known.found_in,
    }


def _reach_working_directory() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not has_local():
        complaints.print(
            "no package `environments` in this directory: only installed families are known by their id; "
            "for those of a checkout, run it from the checkout's root",
            markup=False,
        )
