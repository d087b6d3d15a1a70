"""Processes of a stack are found by their mark, however orphaned, and ended, however stubborn."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra import processes

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
TITLED = f"import setproctitle; setproctitle.setproctitle('VLLM::EngineCore' + 'x' * 2000); {SLEEP}"
ORPHANING = (
    "import subprocess, sys; "
    f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True, stdout=subprocess.PIPE); "
    "child.stdout.readline(); print(child.pid, flush=True)"
)

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def launch(code: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def test_only_the_processes_of_this_stack_are_found(start: Start, tmp_path: Path) -> None:
    ours = start(SLEEP, DRIFTLINE_STACK=str(tmp_path))
    others = [start(SLEEP, DRIFTLINE_STACK=f"{tmp_path}/other"), start(SLEEP)]
    for process in (ours, *others):
        first_line(process)
    assert [process.pid for process in processes.marked(tmp_path)] == [ours.pid]


def test_an_orphan_in_its_own_session_is_found_and_ended(start: Start, tmp_path: Path) -> None:
    parent = start(ORPHANING, DRIFTLINE_STACK=str(tmp_path))
    orphan = int(first_line(parent))
    parent.wait()
    ended = processes.end_marked(tmp_path)
    assert [(process.pid, process.killed) for process in ended] == [(orphan, False)]
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_sets_its_title_keeps_its_mark(start: Start, tmp_path: Path) -> None:
    first_line(start(TITLED, DRIFTLINE_STACK=str(tmp_path), SPT_NOENV="1"))
    assert len(processes.marked(tmp_path)) == 1


def test_a_process_that_ignores_sigterm_is_killed_and_said_to_be(start: Start, tmp_path: Path) -> None:
    stubborn, meek = (start(code, DRIFTLINE_STACK=str(tmp_path)) for code in (STUBBORN, SLEEP))
    for process in (stubborn, meek):
        first_line(process)
    ended = {process.pid: process.killed for process in processes.end_marked(tmp_path, terminate_s=1)}
    assert ended == {stubborn.pid: True, meek.pid: False}
    assert processes.marked(tmp_path) == []


def test_the_asking_process_is_never_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_carries", lambda process, root: True)  # pyright: ignore
    me = psutil.Process()
    found = {process.pid for process in processes.marked(Path("/"))}
    assert found
    assert not found & {me.pid, *(parent.pid for parent in me.parents())}


def test_the_supervisor_is_known_by_its_configuration(start: Start, tmp_path: Path) -> None:
    configuration = tmp_path / "supervisord.conf"
    manager = start(f"'{configuration}'; {SLEEP}", DRIFTLINE_STACK=str(tmp_path))
    part = start(SLEEP, DRIFTLINE_STACK=str(tmp_path))
    for process in (manager, part):
        first_line(process)
    # The path stands inside an argument here, and supervisord gets it as one of its own.
    assert [process.pid for process in processes.supervisors(tmp_path, configuration)] == []
    exact = subprocess.Popen(
        [sys.executable, "-c", SLEEP, str(configuration)],
        env={"DRIFTLINE_STACK": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    try:
        first_line(exact)
        assert [process.pid for process in processes.supervisors(tmp_path, configuration)] == [exact.pid]
    finally:
        exact.kill()
        exact.communicate()
