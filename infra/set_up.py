"""Create the project's Python environment, from the lock. Needs Python 3.11 and nothing else.

    python3.11 infra/set_up.py [--environment .venv] [--lock requirements/cpu.lock] [--no-programs]

    1. an environment (`python -m venv`), and in it the uv that the lock names;
    2. exactly the lock's packages, with uv: by far quicker than pip, which takes over where uv cannot be had; they
       are compiled at once, as every process of a run would otherwise do it for itself where Python may not write;
    3. the project itself, editable;
    4. the system's programs that are missing: bubblewrap for environments that run programs, Chromium for the tests
       of pages. As root, by apt-get; else it says what to do. Without them their tests fail, nothing else does.

Each step is skipped when its stamp says that it was done for the same lock, so that the second time is instant.
uv does not read pip's settings, and a machine's package index, find-links and certificates are usually in those:
they are read with `pip config list` and handed on.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = (3, 11)
STAMP = "driftline-set-up.json"
UV_LISTS = (
    ("index-url", "UV_DEFAULT_INDEX", " "),
    ("extra-index-url", "UV_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
)
"""pip's setting, uv's variable for it, and what separates several values there."""

SYSTEM_PROGRAMS = (
    ("bubblewrap", ("bwrap",), "the sandbox of environments that run programs"),
    ("libseccomp2", ("libseccomp.so.2",), "the same sandbox"),
    ("chromium", ("chromium", "chromium-browser", "google-chrome"), "the tests of pages"),
)
"""Debian's package, any of what shows that it is there (programs, or a library), and what needs it."""


WHAT = {
    "packages": "packages of the lock, some 4 GB: one to two minutes with a fast connection, without another word",
    "project": "the project itself",
}
"""What a step does, for who waits for it."""


class SetUpError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run what is out of date; returns the exit code."""
    parser = argparse.ArgumentParser(description="Create the project's Python environment from the lock.")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv")
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements" / "cpu.lock")
    parser.add_argument("--no-programs", action="store_true", help="install no programs of the system")
    options = parser.parse_args(arguments)
    try:
        set_up(options.environment.absolute(), options.lock)
        if not options.no_programs:
            install_programs(root=os.geteuid() == 0)
    except SetUpError as error:
        sys.stderr.write(f"set-up failed: {error}\n")
        return 1
    return 0


def set_up(environment: Path, lock: Path) -> None:
    """Bring the environment up to date.

    Raises:
        SetUpError: A step failed.
    """
    began = time.monotonic()
    steps = {
        "packages": digest(lock, Path(__file__)),
        "project": digest(lock, Path(__file__), ROOT / "pyproject.toml"),
    }
    done = read_stamp(environment)
    due = [step for step, value in steps.items() if done.get(step) != value]
    if not due:
        return
    actions = {
        "packages": lambda: install_packages(environment, lock),
        "project": lambda: install_project(environment),
    }
    for step in due:
        say(f"set-up: {WHAT[step]}")
        actions[step]()
        done[step] = steps[step]
        (environment / STAMP).write_text(json.dumps(done))
    say(f"set-up: ready in {environment} ({time.monotonic() - began:.0f} s)")


def digest(*files: Path) -> str:
    """One hash of the files' contents and of the Python version."""
    whole = hashlib.sha256(repr(PYTHON).encode())
    for file in files:
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def read_stamp(environment: Path) -> dict[str, str]:
    """What was done, step -> digest; empty when that is unknown or the environment's Python does not run."""
    try:
        done = json.loads((environment / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return done if isinstance(done, dict) and _works(environment, "") else {}


def install_packages(environment: Path, lock: Path) -> None:
    """Make the environment and put exactly the lock's packages into it."""
    if sys.version_info[:2] != PYTHON:
        raise SetUpError(
            f"this is Python {sys.version.split()[0]}, the lock is for 3.11: make setup PYTHON=/path/to/python3.11"
        )
    make_environment(environment)
    python = interpreter(environment)
    settings = pip_settings(python)
    if install_uv(python, lock):
        uv = environment / "bin" / "uv"
        command = [str(uv), "pip", "sync", "--quiet", "--compile-bytecode", "--python", python, str(lock)]
        run(command, env={**os.environ, **uv_variables(settings, os.environ)})
    else:
        say("set-up: uv cannot be installed; pip takes over, which takes several minutes")
        run([python, "-m", "pip", "install", "--no-deps", "--requirement", str(lock)])


def make_environment(environment: Path) -> None:
    """A virtual environment with pip; one that works is kept."""
    if _works(environment, "import sys; sys.exit(sys.version_info[:2] != (3, 11))"):
        if _works(environment, "import pip"):
            return
        ensure = [interpreter(environment), "-m", "ensurepip"]
        subprocess.run(ensure, check=False, capture_output=True, stdin=subprocess.DEVNULL)
        if _works(environment, "import pip"):
            return
    try:
        venv.create(environment, clear=True, with_pip=True, symlinks=True)
    except subprocess.CalledProcessError as error:
        raise SetUpError(
            "this Python cannot make a virtual environment with pip (Debian: install python3.11-venv)"
        ) from error


def _works(environment: Path, program: str) -> bool:
    command = [interpreter(environment), "-c", program]
    try:
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def install_uv(python: str, lock: Path) -> bool:
    """Install the uv that the lock names; whether that worked."""
    pin = re.search(r"^uv==\S+", lock.read_text(), re.MULTILINE)
    if pin is None:
        return False
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", pin[0]]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0


def install_project(environment: Path) -> None:
    """Install the project, editable and without its dependencies: the lock has those."""
    run(
        [
            interpreter(environment),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-e",
            str(ROOT),
        ]
    )


def install_programs(*, root: bool) -> None:
    """Install the system's programs that are missing, or say how. Set-up goes on without them."""
    packages = [package for package, _, _ in missing_programs()]
    if packages and root and shutil.which("apt-get"):
        say(f"set-up: apt-get install {' '.join(packages)}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=False, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for package, _, purpose in missing_programs():
        say(f"set-up: {package} is missing, for {purpose}; tests that need it fail: apt-get install {package}")


def missing_programs() -> list[tuple[str, tuple[str, ...], str]]:
    """Those of `SYSTEM_PROGRAMS` that are not there."""
    return [wanted for wanted in SYSTEM_PROGRAMS if not any(map(_is_there, wanted[1]))]


def _is_there(name: str) -> bool:
    if ".so" not in name:
        return shutil.which(name) is not None
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def pip_settings(python: str) -> dict[str, str]:
    """pip's settings from its files and from `PIP_` variables, by name; the more particular one wins."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        found = re.match(r"(global|install|:env:)\.([a-z-]+)=(.*)", line)
        if found and (found[2] not in settings or found[1] == ":env:"):
            settings[found[2]] = ast.literal_eval(found[3])
    return settings


def uv_variables(pip: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """uv's variables that say what pip's settings say. Those that are set already stay as they are."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "true", "UV_NO_PROGRESS": "1"}
    for name, variable, separator in UV_LISTS:
        if pip.get(name):
            variables[variable] = separator.join(pip[name].split())
    if "cert" in pip:
        variables["SSL_CERT_FILE"] = pip["cert"]
    return {name: value for name, value in variables.items() if name not in inherited}


def interpreter(environment: Path) -> str:
    """The environment's Python."""
    return str(environment / "bin" / "python")


def run(command: list[str], *, env: Mapping[str, str] | None = None) -> None:
    """Run a command to its end.

    Raises:
        SetUpError: It failed.
    """
    code = subprocess.run(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
    if code:
        raise SetUpError(f"`{shlex.join(command)}` ended with {code}; its output is above")


def say(text: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
