"""The local stack: `up`, `down`, and the connection it offers.

Starting waits for everything at once, and every wait has a deadline:

| waits for                     | ends when                          | fails when                           |
|-------------------------------|------------------------------------|--------------------------------------|
| supervisord                   | it answers on its socket           | it ends; 30 s                        |
| each server                   | its health URL answers 200         | its process dies; `start_deadline_s` |
| each worker (prefect is up)   | Prefect has heard from it          | its process dies; `start_deadline_s` |
| the flow keeper               | it has looked at the flow runs     | its process dies; `start_deadline_s` |
| deployments (prefect is up)   | `prefect deploy --all` ends with 0 | it ends otherwise; 300 s             |

A start that fails takes down what it started and says why, with the last lines of the log. Only one `up` or
`down` works on a stack at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from driftline.errors import StackError
from driftline.params import Settings
from infra import environment, flow_server, ports, processes, supervisor
from infra.buckets import ensure_bucket
from infra.health import Say, wait_ready
from infra.layout import (
    INTERNAL_PORTS,
    Layout,
    Ports,
    StackState,
    credentials,
    read_credentials,
    read_state,
    write_private,
    write_state,
)
from infra.parts import KEEPER, SERVERS, WORKERS, parts
from infra.supervisor import SupervisorClient

SUPERVISOR_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a stack is started. A port of None is that of the settings."""

    prefect_port: int | None = None
    mlflow_port: int | None = None
    s3_port: int | None = None
    auto_ports: bool = False
    """Take the next free port where one is taken, instead of refusing."""
    deploy: bool = True
    start_deadline_s: float = 300.0


def up(layout: Layout, settings: Settings, options: StartOptions, say: Say) -> StackState:
    """Start what is not running, wait until all of it works, and deploy.

    Raises:
        StackError: A port is taken, a part died or did not become ready, a deployment was refused.
    """
    layout.create()
    with _exclusive(layout):
        state = read_state(layout)
        fresh = state is None or not is_running(layout)
        if state is None or fresh:
            _clear_remains(layout, say)
            state = _prepare(layout, settings, options)
        else:
            _refuse_changes(state, options)
        try:
            if fresh:
                supervisor.launch(
                    layout, environment.service(layout, state, credentials(layout), settings, os.environ)
                )
            _bring_up(layout, state, options, say)
        except BaseException:
            if fresh:
                say("the start failed: stopping what it had started")
                _take_down(layout)
            raise
    return state


def down(layout: Layout) -> list[processes.Ended]:
    """Stop the stack and end every process of it; returns those that had to be ended one by one.

    Raises:
        StackError: Another `up` or `down` is at work, or a process survives SIGKILL.
    """
    if not layout.root.exists():
        return []
    with _exclusive(layout):
        return _take_down(layout)


def is_running(layout: Layout) -> bool:
    """Whether the stack's supervisord is there and answers."""
    return bool(processes.supervisors(layout.root, layout.configuration)) and SupervisorClient(layout).answers()


def connection(layout: Layout) -> dict[str, str] | None:
    """The environment variables with which a client reaches this stack; None before its first start."""
    state, pair = read_state(layout), read_credentials(layout)
    return environment.connection(layout, state, pair) if state and pair else None


def _bring_up(layout: Layout, state: StackState, options: StartOptions, say: Say) -> None:
    known = parts(layout, state)
    client = SupervisorClient(layout)
    if missing := known.keys() - client.processes().keys():
        raise StackError(
            f"the stack that is running has no {', '.join(sorted(missing))}: another version of driftline started "
            "it: run `driftline down`, then `driftline up`"
        )
    until = time.monotonic() + options.start_deadline_s
    _start(client, SERVERS)
    wait_ready(client, layout, state, [known["seaweedfs"], known["prefect"]], until, say)
    ensure_bucket(state, credentials(layout), until)
    flow_server.create_pools(layout, state)
    if not any(row.alive for name, row in client.processes().items() if name in WORKERS):
        for name in flow_server.settle_cut_off_runs(state):
            say(f"flow run {name} had been cut off: it is now marked as crashed")
    _start(client, WORKERS)
    if options.deploy:
        seconds = flow_server.deploy(layout, state)
        say("deployments are up to date" if seconds is None else f"deployments are registered ({seconds:.0f} s)")
    _start(client, [KEEPER])
    wait_ready(client, layout, state, [known[name] for name in ("mlflow", *WORKERS, KEEPER)], until, say)


def _start(client: SupervisorClient, names: Sequence[str]) -> None:
    states = client.processes()
    client.start(name for name in names if not states[name].alive)


def _prepare(layout: Layout, settings: Settings, options: StartOptions) -> StackState:
    """Choose the ports, refuse those that are taken, and write the files that the processes read."""
    before = read_state(layout)
    state = StackState(_choose_ports(before.ports if before else None, settings, options), settings.bucket)
    write_state(layout, state)
    write_private(layout.configuration, supervisor.configuration(layout, parts(layout, state).values()))
    exports = environment.connection(layout, state, credentials(layout))
    write_private(layout.environment, environment.shell_exports(exports))
    return state


def _choose_ports(before: Ports | None, settings: Settings, options: StartOptions) -> Ports:
    """Public ports as asked for; SeaweedFS's own as in the last start, if they are still free."""
    asked = {
        "prefect": options.prefect_port or settings.prefect_port,
        "mlflow": options.mlflow_port or settings.mlflow_port,
        "s3": options.s3_port or settings.s3_port,
    }
    if options.auto_ports:
        for part, port in asked.items():
            others = {value for name, value in asked.items() if name != part}
            if port in others or not ports.is_free(port):
                asked[part] = ports.pick_free(1, start=port, avoid=others)[0]
    ports.require_free(asked)
    internal = before.internal if before else {}
    taken = set(asked.values())
    if not internal or taken & set(internal.values()) or not all(map(ports.is_free, internal.values())):
        internal = dict(zip(INTERNAL_PORTS, ports.pick_free(len(INTERNAL_PORTS), avoid=taken), strict=True))
    return Ports(**asked, **internal)


def _refuse_changes(state: StackState, options: StartOptions) -> None:
    asked = {"prefect": options.prefect_port, "mlflow": options.mlflow_port, "s3": options.s3_port}
    for part, port in asked.items():
        if port is not None and port != state.ports.public[part]:
            raise StackError(
                f"the stack is running with {part} on port {state.ports.public[part]}, not {port}: "
                "run `driftline down` first"
            )


def _clear_remains(layout: Layout, say: Say) -> None:
    """A supervisor that was killed leaves its parts running: end them, they hold the ports and the data."""
    for process in processes.end_marked(layout.root):
        say(f"ended a process that an earlier stack had left behind: {process.pid} ({process.command})")


def _take_down(layout: Layout) -> list[processes.Ended]:
    """What would start flow runs anew first, then their processes, then the servers which those still need."""
    ended: list[processes.Ended] = []
    if is_running(layout):
        client = SupervisorClient(layout)
        with contextlib.suppress(StackError):
            client.stop([KEEPER], deadline_s=SUPERVISOR_STOP_S)
            client.stop(WORKERS, deadline_s=SUPERVISOR_STOP_S)
            ended += processes.end(_flow_processes(layout, client))
            client.stop(SERVERS, deadline_s=SUPERVISOR_STOP_S)
            client.shutdown()
            for process in processes.supervisors(layout.root, layout.configuration):
                processes.wait_gone(process, SUPERVISOR_STOP_S)
    ended += processes.end_marked(layout.root)
    left = processes.marked(layout.root)
    if left:
        raise StackError(f"still there after SIGKILL: {', '.join(str(process.pid) for process in left)}")
    layout.supervisor_socket.unlink(missing_ok=True)
    return ended


def _flow_processes(layout: Layout, client: SupervisorClient) -> list[psutil.Process]:
    """The stack's processes that are neither supervisord nor one of its servers, nor below a server."""
    keep = {row.pid for name, row in client.processes().items() if name in SERVERS and row.pid}
    manager = {process.pid for process in processes.supervisors(layout.root, layout.configuration)}
    return [
        process
        for process in processes.marked(layout.root)
        if process.pid not in keep | manager and not keep & processes.ancestors(process)
    ]


@contextlib.contextmanager
def _exclusive(layout: Layout) -> Iterator[None]:
    """Hold the stack's lock, which the kernel releases when its holder ends.

    Raises:
        StackError: Another command holds it.
    """
    with layout.lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(
                f"another `driftline up` or `down` is at work on {layout.root}: wait for it to end"
            ) from error
        yield
