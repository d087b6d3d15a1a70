"""What a sandbox may use, as a value: part of a task's identity, since another limit may give another outcome."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from driftline.errors import ConfigurationError

PROFILE_VERSION = 1
"""Counted up when the walls change in a way that a task may notice."""

MIB = 2**20


@dataclass(frozen=True, slots=True)
class SandboxProfile:
    """Limits of one sandbox; those of time and output are of each run.

    Raises:
        ConfigurationError: A limit is not positive, or a single file may be larger than the disk.
    """

    cpu_s: float = 10.0
    """Processor time of a run, summed over its processes."""
    wall_s: float = 20.0
    """Time of a run; `run` may ask for less."""
    memory_bytes: int = 256 * MIB
    """Of all processes and files together; also the address space of each process."""
    processes: int = 32
    """Processes and threads at one time."""
    file_bytes: int = 8 * MIB
    """Size of any one file."""
    disk_bytes: int = 32 * MIB
    """All files together."""
    files: int = 4096
    """Number of files and folders."""
    open_files: int = 64
    """Open files of each process."""
    output_bytes: int = 64 * 1024
    """Standard output and error of a run, together."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ConfigurationError(f"sandbox profile: {name} is {value}, it must be positive")
        if self.file_bytes > self.disk_bytes:
            raise ConfigurationError("sandbox profile: file_bytes is above disk_bytes: lower it, or raise disk_bytes")

    def digest(self) -> str:
        """Hash of the limits and of the walls' version; equal on every machine."""
        canonical = json.dumps([PROFILE_VERSION, asdict(self)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
