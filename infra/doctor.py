"""What may be wrong on this machine, and how to mend it. Changes nothing but one probe object in the bucket."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from driftline.errors import DriftlineError, SandboxError
from driftline.params import Settings
from driftline.sandbox import SandboxProfile, open_sandbox
from driftline.store.client import open_store, probe_conditional_writes
from infra import health, ports, processes, stack
from infra.layout import Layout, read_state

DISK_GIB = 5
MEMORY_GIB = 6
GIB = 2**30
PROBE_PATIENCE_S = 5.0
LOCK = Path("requirements") / "cpu.lock"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. Only `wrong` keeps the pipeline from running."""

    verdict: Literal["ok", "note", "wrong"]
    subject: str
    detail: str
    remedy: str = ""


def examine(layout: Layout, settings: Settings) -> list[Finding]:
    """Look at everything; a check that itself fails becomes a finding."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        python,
        lambda: lock_in_sync(layout.repository / LOCK, installed_versions()),
        lambda: room(layout),
        lambda: sandbox(settings),
        lambda: stack_state(layout, settings),
        lambda: store(layout, settings),
    ]
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except (DriftlineError, OSError) as error:
            findings.append(Finding("wrong", "check", str(error)))
    return findings


def python() -> Iterator[Finding]:
    """Python's version."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == (3, 11):
        yield Finding("ok", "python", version)
    else:
        yield Finding(
            "wrong", "python", f"{version}, but the lock is for 3.11", "make setup PYTHON=/path/to/python3.11"
        )


def lock_in_sync(lock: Path, installed: dict[str, str]) -> Iterator[Finding]:
    """The installed versions against the lock's pins."""
    pins = read_pins(lock.read_text())
    missing = sorted(name for name in pins if name not in installed)
    other = sorted(name for name in pins if name in installed and installed[name] != pins[name])
    if not missing and not other:
        yield Finding("ok", "packages", f"all {len(pins)} pins of {LOCK} are installed")
        return
    parts = [f"{name} {installed[name]} instead of {pins[name]}" for name in other]
    parts += [f"{name} is missing" for name in missing]
    shown = ", ".join(parts[:5]) + (f" and {len(parts) - 5} more" if len(parts) > 5 else "")
    yield Finding("wrong", "packages", shown, "make setup")


def read_pins(text: str) -> dict[str, str]:
    """Normalised name -> version of every `name==version` line."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line)
        if found:
            pins[_normal(found[1])] = found[2]
    return pins


def installed_versions() -> dict[str, str]:
    """Normalised name -> version of what this Python environment holds.

    Only its own folder is read: setuptools puts copies of other packages on the import path.
    """
    path = [sysconfig.get_path("purelib")]
    return {_normal(found.name): found.version for found in metadata.distributions(path=path) if found.name}


def room(layout: Layout) -> Iterator[Finding]:
    """Disk and memory."""
    place = layout.root if layout.root.exists() else layout.repository
    free = shutil.disk_usage(place).free / GIB
    yield (
        Finding("ok", "disk", f"{free:.0f} GiB free")
        if free >= DISK_GIB
        else Finding(
            "wrong", "disk", f"{free:.1f} GiB free at {place}", f"free {DISK_GIB} GiB, or set DRIFTLINE_WORK_DIR"
        )
    )
    memory = psutil.virtual_memory().available / GIB
    yield (
        Finding("ok", "memory", f"{memory:.0f} GiB available")
        if memory >= MEMORY_GIB
        else Finding(
            "note",
            "memory",
            f"{memory:.1f} GiB available",
            f"the demonstration wants {MEMORY_GIB} GiB: end other programs",
        )
    )


def sandbox(settings: Settings) -> Iterator[Finding]:
    """Whether a program can be run in the sandbox of this machine's settings."""

    async def run_nothing() -> float:
        opened = await open_sandbox({}, SandboxProfile(), backend=settings.sandbox)
        try:
            return (await opened.run(["/bin/true"])).seconds
        finally:
            await opened.close()

    if settings.sandbox == "none":
        yield Finding(
            "note", "sandbox", "none: programs of environments run without walls", "unset DRIFTLINE_SANDBOX"
        )
        return
    try:
        asyncio.run(run_nothing())
    except SandboxError as error:
        yield Finding("note", "sandbox", f"environments that run programs cannot: {error}", "see docs/sandbox.md")
    else:
        yield Finding("ok", "sandbox", f"{settings.sandbox} runs programs")


def stack_state(layout: Layout, settings: Settings) -> Iterator[Finding]:
    """The parts if the stack is up; else the ports it would use, and what an earlier one left behind."""
    state = read_state(layout)
    if state is not None and stack.is_running(layout):
        for row in health.status(layout, state):
            remedy = "" if row.healthy else f"see {layout.log(row.name)}; `.venv/bin/driftline up` starts it again"
            yield Finding("ok" if row.healthy else "wrong", row.name, f"{row.detail} ({row.address})", remedy)
        return
    left = processes.marked(layout.root)
    if left:
        pids = ", ".join(str(process.pid) for process in left[:8])
        yield Finding(
            "wrong", "stack", f"{len(left)} processes without their supervisor: {pids}", ".venv/bin/driftline down"
        )
        return
    yield Finding("note", "stack", "not running", ".venv/bin/driftline up")
    wanted = {"prefect": settings.prefect_port, "mlflow": settings.mlflow_port, "s3": settings.s3_port}
    for part, port in wanted.items():
        if ports.is_free(port):
            yield Finding("ok", f"port {port}", f"free, for {part}")
        else:
            by = ports.holder(port) or "a process of another user"
            yield Finding(
                "wrong", f"port {port}", f"wanted for {part}, held by {by}", f".venv/bin/driftline up --{part}-port N"
            )


def store(layout: Layout, settings: Settings) -> Iterator[Finding]:
    """Whether the bucket is there and honours conditional writes, on which every commit rests."""
    state = read_state(layout)
    if state is not None and settings.s3_endpoint == state.ports.s3_url and not stack.is_running(layout):
        yield Finding(
            "note",
            "store",
            f"{settings.s3_endpoint} is the stack's own, which is not running",
            ".venv/bin/driftline up",
        )
        return
    if settings.s3_endpoint is None:
        yield Finding("note", "store", "no endpoint is set: this would be Amazon's own S3", ".venv/bin/driftline up")
        return
    try:
        probe_conditional_writes(open_store(settings, patience_s=PROBE_PATIENCE_S))
    except DriftlineError as error:
        yield Finding(
            "wrong", "store", str(error), ".venv/bin/driftline up, or mend DRIFTLINE_S3_ENDPOINT and DRIFTLINE_BUCKET"
        )
    else:
        yield Finding("ok", "store", f"bucket {settings.bucket} at {settings.s3_endpoint} honours conditional writes")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
