"""Where the files of a local stack lie, which ports it has, and its credentials.

.driftline/                  mode 0700, the stack directory (`DRIFTLINE_WORK_DIR`)
  stack.json                 ports and bucket of the last start
  ids.json                   S3 key pair, generated once, mode 0600; never logged
  env                        `export` lines for a shell, mode 0600
  supervisord.conf, run/     process manager: configuration (no secrets), socket, pid file
  logs/                      one file for each part, rotated
  seaweedfs/ mlflow/ prefect/  data
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from driftline.errors import StackError

SOCKET_PATH_LIMIT = 80
"""Longest path of a Unix socket's directory; the kernel's limit for the whole path is 107 bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of one stack. `root` is absolute: it is also the mark that every process of the stack carries."""

    root: Path
    repository: Path

    @classmethod
    def of(cls, work_dir: Path, repository: Path) -> Layout:
        """The layout under `work_dir`, relative to the repository unless it is absolute."""
        repository = repository.resolve()
        return cls((repository / work_dir).resolve(), repository)

    @property
    def state(self) -> Path:
        return self.root / "stack.json"

    @property
    def identities(self) -> Path:
        return self.root / "ids.json"

    @property
    def environment(self) -> Path:
        return self.root / "env"

    @property
    def configuration(self) -> Path:
        return self.root / "supervisord.conf"

    @property
    def lock(self) -> Path:
        return self.root / "stack.lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def sockets(self) -> Path:
        """Directory of Unix sockets: inside the stack, or in the temporary directory where that path is too long."""
        inside = self.root / "run"
        if len(os.fsencode(inside)) <= SOCKET_PATH_LIMIT:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"driftline-{os.getuid()}-{digest}"

    @property
    def supervisor_socket(self) -> Path:
        return self.sockets / "supervisor.sock"

    def log(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def sign(self, part: str) -> Path:
        """File whose time shows that a program of the stack is at work."""
        return self.sockets / f"{part}.sign"

    def data(self, part: str) -> Path:
        return self.root / part

    def create(self) -> None:
        """Make the directories, readable by their owner alone.

        Raises:
            StackError: One cannot be made, or the socket directory belongs to somebody else.
        """
        try:
            for directory in (
                self.root,
                self.sockets,
                self.logs,
                *map(self.data, ("seaweedfs", "mlflow", "prefect")),
            ):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                directory.chmod(0o700)
        except OSError as error:
            raise StackError(
                f"cannot write to {error.filename}: {error.strerror}: set DRIFTLINE_WORK_DIR to a directory of yours"
            ) from error


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port of the stack, all on 127.0.0.1. The first three are for people, the rest is SeaweedFS's own."""

    prefect: int
    mlflow: int
    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int

    @property
    def public(self) -> dict[str, int]:
        return {"prefect": self.prefect, "mlflow": self.mlflow, "s3": self.s3}

    @property
    def internal(self) -> dict[str, int]:
        return {name: port for name, port in asdict(self).items() if name not in self.public}

    @property
    def prefect_api(self) -> str:
        return f"http://127.0.0.1:{self.prefect}/api"

    @property
    def prefect_page(self) -> str:
        return f"http://127.0.0.1:{self.prefect}"

    @property
    def mlflow_url(self) -> str:
        return f"http://127.0.0.1:{self.mlflow}"

    @property
    def s3_url(self) -> str:
        return f"http://127.0.0.1:{self.s3}"


INTERNAL_PORTS = tuple(field.name for field in fields(Ports))[3:]


@dataclass(frozen=True, slots=True)
class StackState:
    """What the last start decided; `down`, `status` and the next start read it."""

    ports: Ports
    bucket: str


@dataclass(frozen=True, slots=True)
class Credentials:
    """The stack's one S3 key pair."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "Credentials(…)"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def write_state(layout: Layout, state: StackState) -> None:
    """Remember ports and bucket."""
    write_private(layout.state, json.dumps(asdict(state), indent=1) + "\n")


def read_state(layout: Layout) -> StackState | None:
    """What the last start decided; None if there was none, or the file cannot be read."""
    try:
        document = json.loads(layout.state.read_text())
        return StackState(Ports(**document["ports"]), document["bucket"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def credentials(layout: Layout) -> Credentials:
    """The stack's key pair; generated on first use."""
    found = read_credentials(layout)
    if found is not None:
        return found
    made = Credentials(f"DL{secrets.token_hex(9).upper()}", secrets.token_urlsafe(30))
    identity = {
        "name": "driftline",
        "credentials": [{"accessKey": made.access_key, "secretKey": made.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    write_private(layout.identities, json.dumps({"identities": [identity]}, indent=1) + "\n")
    return made


def read_credentials(layout: Layout) -> Credentials | None:
    """The stack's key pair, or None before the first start (or when the file is damaged)."""
    try:
        pair = json.loads(layout.identities.read_text())["identities"][0]["credentials"][0]
        return Credentials(pair["accessKey"], pair["secretKey"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
