"""The command line: the local stack, its doctor, the demonstration and the report.

Run it from the repository root: `infra` and `environments` are found in the working directory. Errors that
Driftline knows end with one message and exit code 1 (2 for a wrong setting); anything else is a defect and shows
its traceback.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from driftline import __version__, cli_environments, cli_run, cli_trajectories
from driftline.cli_reach import adopt, layout_here, reach_store, run_store_of, short
from driftline.cli_report import print_report
from driftline.cli_shared import AutoPorts, StartDeadline, complaints, console, known_errors
from driftline.errors import StackError
from driftline.params import settings

if TYPE_CHECKING:
    from infra.health import PartStatus

app = typer.Typer(
    name="driftline",
    help="Asynchronous RL post-training for LLM agents, as Prefect flows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
offsets = typer.Typer(help="How far generation is from training, over HTTP.", no_args_is_help=True)
app.add_typer(offsets, name="offsets")
traces = typer.Typer(help="The shape of episodes, to replay it.", no_args_is_help=True)
app.add_typer(traces, name="traces")
app.add_typer(cli_environments.app, name="environments")
app.add_typer(cli_trajectories.app, name="trajectories")


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"driftline {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[  # pyright: ignore[reportUnusedParameter]
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Entry point of the `driftline` program."""
    app()


PrefectPort = Annotated[int | None, typer.Option(help="Port of the Prefect page and API.", min=1, max=65535)]
MlflowPort = Annotated[int | None, typer.Option(help="Port of the MLflow page.", min=1, max=65535)]
S3Port = Annotated[int | None, typer.Option(help="Port of the S3 endpoint.", min=1, max=65535)]


@app.command()
@known_errors
def up(
    prefect_port: PrefectPort = None,
    mlflow_port: MlflowPort = None,
    s3_port: S3Port = None,
    auto_ports: AutoPorts = False,
    deploy: Annotated[bool, typer.Option(help="Register the deployments of prefect.yaml.")] = True,
    start_deadline: StartDeadline = 300.0,
) -> None:
    """Start the local stack: S3 (SeaweedFS), MLflow, Prefect, and a worker for each pool."""
    layout = layout_here()
    from infra import stack

    options = stack.StartOptions(prefect_port, mlflow_port, s3_port, auto_ports, deploy, start_deadline)
    state = stack.up(layout, settings(), options, console.print)
    console.print(
        f"\nPrefect  {state.ports.prefect_page}\nMLflow   {state.ports.mlflow_url}\n"
        f"S3       {state.ports.s3_url}  (bucket {state.bucket})\n\n"
        f"For the prefect, mlflow and aws commands of this shell:  source {short(layout.environment)}"
    )


@app.command()
@known_errors
def down() -> None:
    """Stop the local stack and every process of it. Its data stays."""
    layout = layout_here()
    from infra import stack

    ended = stack.down(layout)
    for process in ended:
        console.print(
            f"ended {process.pid}{' (by SIGKILL)' if process.killed else ''}: {process.command}", markup=False
        )
    console.print("the stack is down; its data stays in " + short(layout.root))


@app.command()
@known_errors
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show each part's process, health and address; exit code 1 unless all of them work."""
    layout = layout_here()
    from infra import health
    from infra.layout import read_state

    state = read_state(layout)
    rows = health.status(layout, state) if state else []
    if as_json:
        console.print_json(json.dumps([asdict(row) for row in rows]))
    elif rows:
        console.print(_status_table(rows))
    else:
        console.print("no stack has been started here: run `.venv/bin/driftline up`")
    if not rows or not all(row.healthy for row in rows):
        raise typer.Exit(1)


@app.command()
@known_errors
def doctor() -> None:
    """Look for what is wrong on this machine, and say how to mend it; exit code 1 if something must be."""
    layout = layout_here()
    adopt(layout)
    from infra import doctor as examination

    colours = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    findings = examination.examine(layout, settings())
    for finding in findings:
        console.print(f"[{colours[finding.verdict]}]{finding.verdict:>5}[/]  {finding.subject}: ", end="")
        console.print(finding.detail, markup=False)
        if finding.remedy:
            console.print(f"       → {finding.remedy}", markup=False)
    if any(finding.verdict == "wrong" for finding in findings):
        raise typer.Exit(1)


@app.command("env")
@known_errors
def environment_variables() -> None:
    """Print the variables with which this shell's commands reach the stack: eval "$(driftline env)"."""
    layout = layout_here()
    if not layout.environment.exists():
        raise StackError("no stack has been started here: run `.venv/bin/driftline up`")
    sys.stdout.write(layout.environment.read_text())


@app.command()
@known_errors
def report(
    run: Annotated[str, typer.Option(help="Id of the run, or `latest`.")] = "latest",
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Print what a run reached and how its time was spent, from S3 alone."""
    layout = layout_here()
    reach_store(layout)
    print_report(layout, run, json_path)


@app.command()
@known_errors
def replay(
    step: Annotated[int, typer.Option(help="Number of a committed step.", min=1)],
    run: Annotated[str, typer.Option(help="Id of the run, or `latest`.")] = "latest",
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Rebuild a step from objects alone; exit code 1 unless its figures agree with the record."""
    reach_store(layout_here())
    from driftline import cli_runs

    result = cli_runs.replay(run_store_of(run), step, lambda line: complaints.print(line, markup=False, style="dim"))
    console.print(cli_runs.replay_table(result))
    if json_path is not None:
        json_path.write_text(json.dumps(dict(result), indent=2) + "\n")
    if not result["agrees"]:
        complaints.print(
            "[bold red]the replay does not agree with the record[/] "
            f"(log-probabilities within {result['tolerance']:g} nats)"
        )
        raise typer.Exit(1)
    console.print(f"the replay agrees with the record (log-probabilities within {result['tolerance']:g} nats)")


@app.command()
@known_errors
def gc(
    run: Annotated[str, typer.Option(help="Id of the run.")],
    keep_steps: Annotated[int, typer.Option(help="So many of the last steps stay replayable.", min=1)] = 20,
    keep_versions: Annotated[int, typer.Option(help="So many of the newest policy versions stay.", min=1)] = 5,
    grace_s: Annotated[float, typer.Option(help="Objects younger than this stay, in seconds.", min=0)] = 600.0,
    apply: Annotated[bool, typer.Option("--apply/--dry-run", help="Delete; by default it only says what.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Delete what no kept step needs and no reader has pinned; steps that are not kept lose replay."""
    reach_store(layout_here())
    from driftline import cli_runs
    from driftline.store import collection

    run_store = run_store_of(run)
    plan = collection.plan(run_store, keep_steps=keep_steps, keep_versions=keep_versions, grace_s=grace_s)
    console.print(cli_runs.plan_table(plan))
    if plan.unreplayable:
        lose = "have lost" if apply else "would lose"
        console.print(f"steps {cli_runs.steps_text(plan.unreplayable)} {lose} replay: their inputs go")
    if apply:
        collection.collect(run_store, plan)
        console.print(f"{len(plan.doomed)} objects are deleted")
    else:
        console.print("nothing was deleted: this was a dry run; delete with --apply")
    if json_path is not None:
        json_path.write_text(json.dumps(cli_runs.plan_dict(plan, applied=apply), indent=2) + "\n")


@offsets.command()
@known_errors
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but the loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8642,
) -> None:
    """Serve the offset API, and its page at /. Requests bear DRIFTLINE_API_TOKEN if that is set."""
    reach_store(layout_here() if (Path.cwd() / "infra" / "stack.py").is_file() else None)
    from driftline.offsets.server import serve as serve_offsets

    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    serve_offsets(settings(), host, port, lambda: console.print(f"offsets: {address}  (Ctrl-C ends it)"))


@traces.command("export")
@known_errors
def export_trace(
    out: Annotated[Path, typer.Option(help="A new file; by custom its name ends with .jsonl.")],
    run: Annotated[str, typer.Option(help="Id of the run, or `latest`.")] = "latest",
    steps: Annotated[
        str | None, typer.Option(help="Groups of these steps alone, such as 4 or 4-9; else all that are finished.")
    ] = None,
) -> None:
    """Make a trace of a run: tokens and tool seconds of every turn, for `trace_replay/v1` to replay."""
    reach_store(layout_here())
    from driftline import cli_traces

    table, digest = cli_traces.export_to(run_store_of(run), out, steps)
    console.print(table)
    console.print(f"SHA-256 {digest}")


app.command()(cli_run.run)
app.command()(cli_run.demo)


def _status_table(rows: list[PartStatus]) -> Table:
    table = Table("part", "process", "health", "address", "pid")
    for row in rows:
        colour = "green" if row.healthy else "red"
        table.add_row(row.name, row.state, f"[{colour}]{row.detail}[/]", row.address, str(row.pid or ""))
    return table
