"""What the local stack consists of: the command of each part, and how to tell that it works.

| part           | what it is                           | needs   |
|----------------|--------------------------------------|---------|
| seaweedfs      | the object store, as S3              |         |
| mlflow         | tracking server and its page         |         |
| prefect        | API, scheduler and page              |         |
| worker-<pool>  | one process worker for each pool     | prefect |
| flow-keeper    | looks after flow runs that were cut  | prefect |
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.layout import Layout, StackState
from infra.ports import HOST

POOLS = ("cpu-env", "rollout-gpu", "train-gpu")
SERVERS = ("seaweedfs", "mlflow", "prefect")
WORKERS = tuple(f"worker-{pool}" for pool in POOLS)
KEEPER = "flow-keeper"


@dataclass(frozen=True, slots=True)
class Part:
    """One supervised process."""

    name: str
    command: tuple[str, ...]
    address: str
    """Where a person finds it: a URL, or the pool it works for."""
    health: str
    """URL that answers 200 when it works; for a worker, its name; for the keeper, the file that it touches."""
    kind: Literal["server", "worker", "keeper"]
    stop_s: int
    """Seconds between SIGTERM and SIGKILL."""


def parts(layout: Layout, state: StackState) -> dict[str, Part]:
    """All parts by name, in the order in which they are shown."""
    servers = (_seaweedfs(layout, state), _mlflow(layout, state), _prefect(state))
    return {part.name: part for part in (*servers, *map(_worker, POOLS), _keeper(layout))}


def program(name: str) -> str:
    """A program of this Python environment."""
    return str(Path(sys.executable).parent / name)


def _launched(name: str, *command: str) -> tuple[str, ...]:
    """The command of a server that may be killed: it first ends what is left of an earlier start."""
    return (sys.executable, "-m", "infra.launch", name, *command)


def _seaweedfs(layout: Layout, state: StackState) -> Part:
    ports = state.ports
    command = _launched(
        "seaweedfs", program("weed"), "server",
        f"-dir={layout.data('seaweedfs')}", f"-ip={HOST}", f"-ip.bind={HOST}",
        f"-master.port={ports.master}", f"-master.port.grpc={ports.master_grpc}",
        "-master.volumeSizeLimitMB=256", "-master.telemetry=false",
        f"-volume.port={ports.volume}", f"-volume.port.grpc={ports.volume_grpc}",
        "-volume.max=100", "-volume.preStopSeconds=0",
        "-filer", f"-filer.port={ports.filer}", f"-filer.port.grpc={ports.filer_grpc}",
        f"-filer.localSocket={layout.sockets / 'filer.sock'}",
        "-s3", f"-s3.port={ports.s3}", f"-s3.port.grpc={ports.s3_grpc}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={layout.identities}",
        f"-s3.localSocket={layout.sockets / 's3.sock'}",
    )  # fmt: skip
    # Its volumes are closed at once; what it then waits 15 s for are idle connections.
    return Part("seaweedfs", command, ports.s3_url, f"{ports.s3_url}/healthz", "server", stop_s=4)


def _mlflow(layout: Layout, state: StackState) -> Part:
    ports = state.ports
    command = _launched(
        "mlflow", program("mlflow"), "server", "--host", HOST, "--port", str(ports.mlflow), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{layout.data('mlflow') / 'mlflow.db'}",
        "--artifacts-destination", f"s3://{state.bucket}/mlflow",
    )  # fmt: skip
    return Part("mlflow", command, ports.mlflow_url, f"{ports.mlflow_url}/health", "server", stop_s=8)


def _prefect(state: StackState) -> Part:
    ports = state.ports
    command = _launched(
        "prefect", sys.executable, "-m", "infra.prefect_server", "server", "start",
        "--host", HOST, "--port", str(ports.prefect),
    )  # fmt: skip
    return Part("prefect", command, ports.prefect_page, f"{ports.prefect_api}/health", "server", stop_s=8)


def _worker(pool: str) -> Part:
    name = f"worker-{pool}"
    command = (
        program("prefect"), "worker", "start", "--pool", pool, "--type", "process", "--name", name,
        "--install-policy", "never", "--no-create-pool-if-not-found",
    )  # fmt: skip
    return Part(name, command, f"work pool {pool}", name, "worker", stop_s=10)


def _keeper(layout: Layout) -> Part:
    command = (sys.executable, "-m", "infra.flow_keeper")
    return Part(KEEPER, command, "all work pools", str(layout.sign(KEEPER)), "keeper", stop_s=3)
