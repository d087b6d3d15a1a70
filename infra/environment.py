"""The process environment of the stack's parts, and the one a user's shell needs to work with them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from driftline.params import Settings
from infra.layout import Credentials, Layout, StackState
from infra.processes import STACK_VARIABLE

REGION = "us-east-1"

DROPPED_PREFIXES = ("PREFECT_", "MLFLOW_", "AWS_", "DRIFTLINE_", "SUPERVISOR_")
"""What a user's shell says about other servers and accounts must not reach the stack."""
DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
KEPT = ("AWS_CA_BUNDLE",)


def connection(layout: Layout, state: StackState, credentials: Credentials) -> dict[str, str]:
    """What any client of this stack needs: the addresses, the bucket and the key pair."""
    ports = state.ports
    return {
        "DRIFTLINE_S3_ENDPOINT": ports.s3_url,
        "DRIFTLINE_S3_REGION": REGION,
        "DRIFTLINE_BUCKET": state.bucket,
        "DRIFTLINE_MLFLOW_URI": ports.mlflow_url,
        "DRIFTLINE_WORK_DIR": str(layout.root),
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        # For `aws` and other S3 clients. Driftline's own name their endpoint, which goes before this.
        "AWS_ENDPOINT_URL_S3": ports.s3_url,
        "MLFLOW_TRACKING_URI": ports.mlflow_url,
        "MLFLOW_S3_ENDPOINT_URL": ports.s3_url,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_API_URL": ports.prefect_api,
        "PREFECT_HOME": str(layout.data("prefect")),
        # Prefect pickles the exception of every run that failed, whatever `persist_result` says. PREFECT_HOME alone
        # does not move these files out of the user's home.
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(layout.data("prefect") / "storage"),
        "DO_NOT_TRACK": "1",
    }


def service(
    layout: Layout, state: StackState, credentials: Credentials, settings: Settings, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the supervisor, and so of every part, worker and flow run.

    The secrets are here rather than in `supervisord.conf`: they are then in no file but the two private ones.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if name in KEPT or not (name.startswith(DROPPED_PREFIXES) or name in DROPPED)
    }
    programs = str(Path(sys.executable).parent)
    return {
        **kept,
        **connection(layout, state, credentials),
        STACK_VARIABLE: str(layout.root),
        "SPT_NOENV": "1",
        "PATH": os.pathsep.join([programs, inherited.get("PATH", os.defpath)]),
        "NO_PROXY": ",".join(filter(None, [inherited.get("NO_PROXY", ""), "127.0.0.1", "localhost"])),
        "no_proxy": ",".join(filter(None, [inherited.get("no_proxy", ""), "127.0.0.1", "localhost"])),
        "PYTHONUNBUFFERED": "1",
        "DRIFTLINE_HOME": str(layout.repository),
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_UI_ENABLED": "true",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        # In memory, as it comes, leases do not outlive the server: a flow run that holds one then ends itself.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Six tries with doubling pauses outlast a restart of the server (two minutes).
        "PREFECT_CLIENT_MAX_RETRIES": "6",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "driftline",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{layout.data('prefect') / 'prefect.db'}",
    }


def client(
    layout: Layout, state: StackState, credentials: Credentials, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a command that a user runs against the stack; it does not carry the stack's mark.

    Nor `DRIFTLINE_HOME`, which `prefect deploy` would write into the deployments.
    """
    programs = str(Path(sys.executable).parent)
    return {
        **{name: value for name, value in inherited.items() if name != "DRIFTLINE_HOME"},
        **connection(layout, state, credentials),
        "PATH": os.pathsep.join([programs, inherited.get("PATH", os.defpath)]),
        "NO_PROXY": ",".join(filter(None, [inherited.get("NO_PROXY", ""), "127.0.0.1", "localhost"])),
        "PREFECT_CLI_PROMPT": "false",
    }


def shell_exports(values: Mapping[str, str]) -> str:
    """`export` lines for a POSIX shell."""
    header = "# Written by `driftline up`. Use it with: source .driftline/env   (it holds the stack's S3 key pair)\n"
    return header + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
