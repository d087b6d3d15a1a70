"""`driftline run` and `driftline demo`: a post-training run on the local stack, from its parameters to its report."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.cli_reach import adopt, layout_here, short
from driftline.cli_report import REPORT_PATIENCE_S, print_report
from driftline.cli_shared import AutoPorts, StartDeadline, console, known_errors
from driftline.errors import ConfigurationError, ObjectMissing, StackError, StoreError
from driftline.params import settings

if TYPE_CHECKING:
    from infra.follow import FlowRun
    from infra.layout import Layout, StackState

FLOW = "post-training"
DEMO_DEPLOYMENT = "post-training/local"
DEMO_DEADLINE_S = 3600
PREPARING = "task set and base policy come first; making a base policy (a warm start) takes a minute or more, once"
STARTING = ": engine and trainer start, which takes a minute or more"
INTERRUPTED = 130
"""Exit code of a program that Ctrl-C has ended."""


@known_errors
def run(
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A parameter, such as training.steps=40; the value is JSON, else text. May be repeated.",
        ),
    ] = None,
    deployment: Annotated[str, typer.Option(help="Deployment of post-training: local, smollm2, gpu.")] = "local",
    detach: Annotated[bool, typer.Option("--detach", help="Start it, and do not follow it.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Check the parameters, start a run on the local stack, follow it to its end, and print its report.

    Ctrl-C ends the following alone: the run goes on.
    """
    if detach and json_path is not None:
        raise ConfigurationError("--json: there are no figures of a run that is not followed: leave --detach out")
    from driftline import cli_parameters

    given = cli_parameters.read(param or [])
    cli_parameters.check_each(given)
    layout = layout_here()
    state = _running_stack(layout)
    from infra import follow, web

    try:
        known = follow.deployments_of(state, FLOW)
    except web.Unanswered as error:
        raise StackError(
            f"Prefect does not answer at {state.ports.prefect_page}: see `.venv/bin/driftline status`, or go on with "
            f"`.venv/bin/driftline up` if the start was interrupted ({error})"
        ) from error
    name = deployment.removeprefix(f"{FLOW}/")
    if name not in known:
        raise ConfigurationError(f"--deployment {deployment}: {_hint(name, list(known))}")
    parameters = cli_parameters.merged(known[name].get(cli_parameters.WHOLE) or {}, given)
    cli_parameters.check(parameters)
    adopt(layout)
    flow_run = follow.create(state, f"{FLOW}/{name}", {cli_parameters.WHOLE: parameters} if parameters else None)
    console.print(f"run {flow_run.run}, flow run {flow_run.name}: {_page(state, flow_run)}")
    if detach:
        console.print(_how_to_go_on(flow_run))
        return
    try:
        follow.follow(state, flow_run, console.print, deadline_s=math.inf, progress=progress_of(flow_run.run))
    except KeyboardInterrupt:
        console.print(f"\nnot followed any longer; the run goes on\n{_how_to_go_on(flow_run)}")
        raise typer.Exit(INTERRUPTED) from None
    console.print()
    print_report(layout, flow_run.run, json_path)


@known_errors
def demo(
    auto_ports: AutoPorts = False,
    start_deadline: StartDeadline = 300.0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Bring the stack up, run the `post-training/local` deployment to its end, and print the report."""
    layout = layout_here()
    from infra import follow, stack

    began = time.monotonic()
    options = stack.StartOptions(auto_ports=auto_ports, start_deadline_s=start_deadline)
    state = stack.up(layout, settings(), options, console.print)
    adopt(layout)
    try:
        flow_run = follow.create(state, DEMO_DEPLOYMENT)
        console.print(f"\nrunning {DEMO_DEPLOYMENT}; see it at {_page(state, flow_run)}\n")
        progress = progress_of(flow_run.run)
        follow.follow(state, flow_run, console.print, deadline_s=DEMO_DEADLINE_S, progress=progress)
    except StackError as error:
        raise StackError(
            f"{error}; see {state.ports.prefect_page}/runs and {short(layout.logs)} (the stack is still up)"
        ) from error
    console.print()
    print_report(layout, flow_run.run, json_path)
    seconds = time.monotonic() - began
    console.print(f"\n{seconds:.0f} s altogether. The stack stays up; stop it with  .venv/bin/driftline down")


def progress_of(run: str) -> Callable[[], str | None]:
    """Says how far a run is; None where the store does not answer."""
    from driftline.store.client import open_store
    from driftline.store.run_store import RunStore

    run_store = RunStore(open_store(settings(), patience_s=REPORT_PATIENCE_S), run)

    def progress() -> str | None:
        try:
            head, _ = run_store.read_head()
            steps = run_store.describe().parameters["training"]["steps"]
        except ObjectMissing:
            return PREPARING
        except StoreError:
            return None  # It is told of again at the next look.
        return f"step {head.step} of {steps}{'' if head.step else STARTING}"

    return progress


def _running_stack(layout: Layout) -> StackState:
    from infra import stack
    from infra.layout import read_state

    state = read_state(layout)
    if state is None or not stack.is_running(layout):
        raise StackError(
            "the local stack is not running: run `.venv/bin/driftline up`; on a Prefect server of your own, "
            "`prefect deployment run post-training/local`"
        )
    return state


def _hint(name: str, known: list[str]) -> str:
    if not known:
        return "post-training has no deployments: `.venv/bin/driftline up` registers them"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
    return f"post-training has no such deployment: {meant}"


def _page(state: StackState, flow_run: FlowRun) -> str:
    return f"{state.ports.prefect_page}/runs/flow-run/{flow_run.id}"


def _how_to_go_on(flow_run: FlowRun) -> str:
    return (
        f"how far it is:  .venv/bin/driftline report --run {flow_run.run}\n"
        f'to cancel it:   eval "$(.venv/bin/driftline env)" && .venv/bin/prefect flow-run cancel {flow_run.id}'
    )
