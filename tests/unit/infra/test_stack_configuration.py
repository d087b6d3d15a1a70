"""What supervisord is told, and what the parts' environment holds."""

import configparser
import subprocess
from pathlib import Path

import boto3.session
import pytest
from prefect.settings.models.results import ResultsSettings

from driftline.errors import StackError
from driftline.params import Settings
from infra import environment, supervisor
from infra.layout import Credentials, Layout, Ports, StackState
from infra.parts import KEEPER, POOLS, SERVERS, WORKERS, parts

STATE = StackState(Ports(4200, 5000, 8333, *range(21800, 21807)), "driftline")
PAIR = Credentials("ACCESSKEY", "sec'ret key")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.of(Path("stack"), tmp_path)


def written(layout: Layout) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(" ;",))
    parser.read_string(supervisor.configuration(layout, parts(layout, STATE).values()))
    return parser


def service(layout: Layout, inherited: dict[str, str]) -> dict[str, str]:
    return environment.service(layout, STATE, PAIR, Settings(), inherited)  # pyright: ignore[reportCallIssue]


def test_every_part_is_supervised_and_ended_with_its_whole_group(layout: Layout) -> None:
    found = written(layout)
    programs = {name.removeprefix("program:") for name in found.sections() if name.startswith("program:")}
    assert programs == {*SERVERS, *WORKERS, KEEPER}
    for name in programs:
        section = found[f"program:{name}"]
        assert section["stopasgroup"] == section["killasgroup"] == section["autorestart"] == "true"
        assert section["autostart"] == "false"
        assert int(section["startretries"]) <= 5
        assert int(section["stdout_logfile_maxbytes"]) > 0


def test_each_pool_has_a_worker() -> None:
    assert POOLS == ("cpu-env", "rollout-gpu", "train-gpu")
    assert tuple(f"worker-{pool}" for pool in POOLS) == WORKERS


def test_no_secret_and_no_other_host_is_in_the_configuration(layout: Layout) -> None:
    text = supervisor.configuration(layout, parts(layout, STATE).values())
    assert PAIR.secret_key not in text
    assert PAIR.access_key not in text
    assert "0.0.0.0" not in text
    assert "-ip=127.0.0.1 -ip.bind=127.0.0.1" in text
    assert text.count("--host 127.0.0.1") == 2


def test_every_port_of_the_stack_is_given_to_its_part(layout: Layout) -> None:
    commands = {name: " ".join(part.command) for name, part in parts(layout, STATE).items()}
    for port in (*STATE.ports.internal.values(), STATE.ports.s3):
        assert f"={port}" in commands["seaweedfs"]
    assert "--port 5000" in commands["mlflow"]
    assert "--port 4200" in commands["prefect"]


def test_percent_signs_are_doubled_for_supervisord(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "100%", tmp_path)
    assert "100%%/logs" in supervisor.configuration(layout, parts(layout, STATE).values())


def test_a_path_that_supervisord_would_cut_off_is_refused(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "a ;b", tmp_path)
    with pytest.raises(StackError, match="move the checkout"):
        supervisor.configuration(layout, parts(layout, STATE).values())


def test_the_users_other_servers_do_not_reach_the_stack(layout: Layout) -> None:
    inherited = {
        "PREFECT_API_URL": "https://elsewhere", "PREFECT_API_KEY": "k",
        "AWS_PROFILE": "work", "AWS_SESSION_TOKEN": "t",
        "MLFLOW_TRACKING_URI": "https://elsewhere", "PYTHONPATH": "/elsewhere", "DRIFTLINE_STACK": "/elsewhere",
        "AWS_CA_BUNDLE": "/certificates", "LANG": "C.UTF-8", "PATH": "/usr/bin",
    }  # fmt: skip
    made = service(layout, inherited)
    assert "elsewhere" not in " ".join(made.values())
    assert not made.keys() & {"PREFECT_API_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN", "PYTHONPATH"}
    assert made["AWS_CA_BUNDLE"] == "/certificates"
    assert made["LANG"] == "C.UTF-8"
    assert made["PATH"].endswith(":/usr/bin")


def test_the_parts_know_the_stack_and_send_nothing_home(layout: Layout) -> None:
    made = service(layout, {})
    expected = {
        "DRIFTLINE_STACK": str(layout.root),
        "DRIFTLINE_HOME": str(layout.repository),
        "DRIFTLINE_S3_ENDPOINT": "http://127.0.0.1:8333",
        "DRIFTLINE_BUCKET": "driftline",
        "DRIFTLINE_MLFLOW_URI": "http://127.0.0.1:5000",
        "MLFLOW_S3_ENDPOINT_URL": "http://127.0.0.1:8333",
        "PREFECT_API_URL": "http://127.0.0.1:4200/api",
        "AWS_ACCESS_KEY_ID": PAIR.access_key,
        "AWS_SECRET_ACCESS_KEY": PAIR.secret_key,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_OFFLINE": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "driftline",
        "SPT_NOENV": "1",
    }
    assert expected.items() <= made.items()
    assert "127.0.0.1" in made["NO_PROXY"].split(",")


def test_a_users_command_carries_neither_the_mark_nor_the_home(layout: Layout) -> None:
    made = environment.client(layout, STATE, PAIR, {"DRIFTLINE_HOME": "/elsewhere", "HOME": "/home/u"})
    assert "DRIFTLINE_STACK" not in made
    assert "DRIFTLINE_HOME" not in made
    assert made["HOME"] == "/home/u"
    assert made["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"


def test_other_s3_clients_of_the_shell_reach_the_stack(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.connection(layout, STATE, PAIR).items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("s3")  # pyright: ignore[reportUnknownMemberType]
    assert client.meta.endpoint_url == STATE.ports.s3_url
    elsewhere = boto3.session.Session().client("s3", endpoint_url="http://127.0.0.1:1")  # pyright: ignore[reportUnknownMemberType]
    assert elsewhere.meta.endpoint_url == "http://127.0.0.1:1", "what a client names itself goes before"


def test_what_prefect_keeps_of_failed_runs_stays_in_the_stacks_directory(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.connection(layout, STATE, PAIR).items():
        monkeypatch.setenv(name, value)
    assert ResultsSettings().local_storage_path == layout.data("prefect") / "storage"


def test_the_export_lines_mean_the_same_to_a_shell(layout: Layout) -> None:
    values = environment.connection(layout, STATE, PAIR)
    script = environment.shell_exports(values) + 'printf "%s" "$AWS_SECRET_ACCESS_KEY"\n'
    shown = subprocess.run(["/bin/sh"], input=script, env={}, capture_output=True, text=True, check=True).stdout
    assert shown == PAIR.secret_key
