"""The command line: exit codes, messages, and what it hands on."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner, Result

import driftline
from driftline import cli, cli_reach, params
from driftline.errors import ConfigurationError, StackError
from infra import health, stack
from infra.layout import Layout, Ports, StackState, credentials, write_state
from tests.support.mlflow_server import free_port

STATE = StackState(Ports(4200, 5000, 8333, *range(21800, 21807)), "driftline")
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command against an empty stack directory."""
    monkeypatch.setenv("DRIFTLINE_WORK_DIR", str(tmp_path / "stack"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.delenv("DRIFTLINE_S3_ENDPOINT", raising=False)
    params.settings.cache_clear()
    monkeypatch.setattr(cli_reach, "adopt_environment", lambda values: None)
    yield lambda *arguments: CliRunner().invoke(cli.app, arguments)
    params.settings.cache_clear()


@pytest.fixture
def started(tmp_path: Path) -> Layout:
    layout = Layout.of(tmp_path / "stack", Path.cwd())
    layout.create()
    credentials(layout)
    write_state(layout, STATE)
    return layout


def fails_with(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    return fail


def test_outside_a_checkout_every_command_says_where_to_go(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("up")
    assert result.exit_code == 2
    assert "is not the root of a Driftline checkout" in result.stderr


@pytest.mark.parametrize(("error", "code"), [(StackError("port 1 is taken [x]"), 1), (ConfigurationError("no"), 2)])
def test_a_known_error_is_one_message_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(stack, "up", fails_with(error))
    result = run("up")
    assert result.exit_code == code
    assert result.stderr.strip() == f"{type(error).__name__}: {error}"


def test_a_defect_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "up", fails_with(ZeroDivisionError()))
    assert isinstance(run("up").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "command", [("report",), ("replay", "--step", "1"), ("gc", "--run", "r"), ("offsets", "serve")]
)
def test_without_a_stack_or_a_store_the_way_to_one_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    result = run(*command)
    assert result.exit_code == 1
    assert "run `.venv/bin/driftline up`, or set DRIFTLINE_S3_ENDPOINT" in result.stderr
    assert "Amazon's" not in result.stderr


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").stdout == f"driftline {driftline.__version__}\n"


def test_status_without_a_stack_fails_and_says_what_to_do(run: Run) -> None:
    result = run("status")
    assert result.exit_code == 1
    assert "driftline up" in result.stdout
    assert json.loads(run("status", "--json").stdout) == []


@pytest.mark.parametrize("healthy", [True, False])
def test_status_succeeds_only_if_every_part_works(
    run: Run, started: Layout, monkeypatch: pytest.MonkeyPatch, healthy: bool
) -> None:
    rows = [
        health.PartStatus("prefect", "running", True, "ok", "http://127.0.0.1:4200", 7),
        health.PartStatus("mlflow", "running", healthy, "answers 503", "http://127.0.0.1:5000", 8),
    ]
    monkeypatch.setattr(health, "status", lambda layout, state: rows)
    assert run("status").exit_code == (0 if healthy else 1)
    result = run("status", "--json")
    assert result.exit_code == (0 if healthy else 1)
    assert json.loads(result.stdout)[1] == {
        "name": "mlflow", "state": "running", "healthy": healthy, "detail": "answers 503",
        "address": "http://127.0.0.1:5000", "pid": 8,
    }  # fmt: skip


def test_up_hands_its_options_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[stack.StartOptions] = []

    def up(layout: Layout, settings: params.Settings, options: stack.StartOptions, say: object) -> StackState:
        seen.append(options)
        return STATE

    monkeypatch.setattr(stack, "up", up)
    result = run("up", "--mlflow-port", "5050", "--auto-ports", "--no-deploy", "--start-deadline", "9")
    assert result.exit_code == 0
    assert seen == [stack.StartOptions(None, 5050, None, True, False, 9.0)]
    assert "http://127.0.0.1:4200" in result.stdout


def test_env_prints_the_export_lines(run: Run, started: Layout) -> None:
    assert run("env").exit_code == 1
    started.environment.write_text("export A=1\n")
    assert run("env").stdout == "export A=1\n"


def test_the_local_stack_is_used_unless_another_store_is_named(
    run: Run, started: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted: list[dict[str, str]] = []
    monkeypatch.setattr(cli_reach, "adopt_environment", adopted.append)
    monkeypatch.setattr(cli, "print_report", lambda layout, name, path: None)
    assert run("report").exit_code == 0
    assert adopted[0]["DRIFTLINE_S3_ENDPOINT"] == "http://127.0.0.1:8333"
    monkeypatch.setenv("DRIFTLINE_S3_ENDPOINT", "https://elsewhere")
    params.settings.cache_clear()
    assert run("report").exit_code == 0
    assert len(adopted) == 1


def test_the_command_line_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys, driftline.cli, infra.stack, infra.health, infra.doctor; "
        "heavy = {'torch', 'vllm', 'deepspeed', 'transformers', 'mlflow', 'prefect', 'pyarrow'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_offsets_are_served_on_the_loopback_or_with_a_token(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, bool]] = []
    port = str(free_port())

    def answer(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        (taken,) = sockets
        served.append((taken.getsockname()[0], server.config.access_log))
        taken.close()

    monkeypatch.setattr(uvicorn.Server, "run", answer)
    result = run("offsets", "serve", "--port", port)
    assert result.exit_code == 0
    assert f"offsets: http://127.0.0.1:{port}/" in result.output
    refused = run("offsets", "serve", "--host", "0.0.0.0")
    assert refused.exit_code == 2
    assert "0.0.0.0 is not the loopback: set DRIFTLINE_API_TOKEN" in refused.stderr
    monkeypatch.setenv("DRIFTLINE_API_TOKEN", "a-token-of-enough-characters")
    params.settings.cache_clear()
    result = run("offsets", "serve", "--host", "0.0.0.0", "--port", port)
    assert result.exit_code == 0
    assert "a-token" not in result.output
    assert served == [("127.0.0.1", False), ("0.0.0.0", False)]


def test_an_address_that_is_taken_is_said_and_not_announced(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        result = run("offsets", "serve", "--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in result.stderr
    assert "Ctrl-C" not in result.output
