"""Supervision with real processes: what is heard, how a child ends, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from driftline.errors import ConfigurationError, DriftlineError, ProcessFailed, TransientProcessFailure
from driftline.process import supervise
from driftline.process.supervisor import LINE_LIMIT_BYTES

PREAMBLE = """
import asyncio, os, signal, subprocess, sys, threading, time
from driftline import errors
from driftline.process import child_main, emit
"""
IGNORING = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def child(tmp_path: Path, code: str, name: str = "child.py") -> list[str]:
    script = tmp_path / name
    script.write_text(PREAMBLE + textwrap.dedent(code))
    return [sys.executable, str(script)]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive(pid):
            return True
        time.sleep(0.02)
    return False


class Ear:
    """Notes what a child says; `heard` waits for an event of a kind."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.log: list[str] = []
        self._news = asyncio.Event()

    def on_event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        self._news.set()

    async def heard(self, kind: str) -> Mapping[str, Any]:
        async with asyncio.timeout(30):
            while True:
                for event in self.events:
                    if event["event"] == kind:
                        return event
                self._news.clear()
                await self._news.wait()


async def test_events_and_log_lines_arrive_apart_and_in_order(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        def main():
            emit({"event": "ready"})
            print("a stray print")
            print('{"not": "an event"}')
            sys.stderr.write("a log line\\n")
            for i in range(3):
                emit({"event": "progress", "step": i})
            emit({"event": "result", "answer": 42})
            print('{"event": "result", "answer": 0}')
        child_main(main)
        """,
    )
    ear = Ear()
    outcome = await supervise(argv, on_event=ear.on_event, on_log=ear.log.append)
    assert [e["event"] for e in ear.events] == ["ready", *["progress"] * 3, "result"]
    assert [e["step"] for e in ear.events[1:4]] == [0, 1, 2]
    assert outcome.exit_code == 0
    assert outcome.result == {"event": "result", "answer": 42}
    prints = {"a stray print", '{"not": "an event"}', '{"event": "result", "answer": 0}'}
    assert prints | {"a log line"} <= set(ear.log)


async def test_lines_on_stdout_that_are_no_events_become_log_lines(tmp_path: Path) -> None:
    code = """print('hello'); print('{broken'); print('[1]'); print('{"event": 3}'); print('{"event": "ready"}')"""
    ear = Ear()
    await supervise([sys.executable, "-c", code], on_event=ear.on_event, on_log=ear.log.append)
    assert ear.log == ["hello", "{broken", "[1]", '{"event": 3}']
    assert ear.events == [{"event": "ready"}]


async def test_listeners_may_be_coroutines(tmp_path: Path) -> None:
    heard: list[object] = []

    async def listen(value: object) -> None:
        await asyncio.sleep(0)
        heard.append(value)

    code = """import sys; print('{"event": "ready"}', flush=True); sys.stderr.write('line\\n')"""
    await supervise([sys.executable, "-c", code], on_event=listen, on_log=listen)
    assert len(heard) == 2
    assert {"event": "ready"} in heard
    assert "line" in heard


async def test_a_flood_of_output_does_not_deadlock(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        def main():
            block = "x" * 99 + "\\n"
            noise = threading.Thread(target=lambda: [sys.stderr.write(block * 100) for _ in range(300)])
            noise.start()
            for i in range(2000):
                emit({"event": "progress", "padding": "y" * 1000, "i": i})
            noise.join()
        child_main(main)
        """,
    )
    ear = Ear()
    async with asyncio.timeout(60):
        await supervise(argv, on_event=ear.on_event, on_log=ear.log.append)
    assert [e["i"] for e in ear.events] == list(range(2000))
    assert sum(len(line) for line in ear.log) == 300 * 100 * 99


async def test_events_of_racing_threads_are_never_torn(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        def send(n):
            for i in range(200):
                emit({"event": "progress", "thread": n, "i": i, "padding": "z" * 9000})
        def main():
            threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
        child_main(main)
        """,
    )
    ear = Ear()
    await supervise(argv, on_event=ear.on_event, on_log=ear.log.append)
    assert ear.log == []
    assert sorted((e["thread"], e["i"]) for e in ear.events) == [(n, i) for n in range(4) for i in range(200)]


async def test_an_endless_line_is_cut_up_and_a_progress_bar_shows_its_end() -> None:
    ear = Ear()
    code = f"import sys; sys.stderr.write('x' * {LINE_LIMIT_BYTES + 5}); print('\\n 1%\\r50%\\r99%')"
    await supervise([sys.executable, "-c", code], on_log=ear.log.append)
    assert sum(line.count("x") for line in ear.log) == LINE_LIMIT_BYTES + 5
    assert "99%" in ear.log
    assert not any("50%" in line for line in ear.log)


@pytest.mark.parametrize(
    ("raised", "expected", "says"),
    [
        ("errors.ConfigurationError('set x to 1')", ConfigurationError, "^set x to 1$"),
        ("errors.EngineDied('no answer')", TransientProcessFailure, "exit code 75: EngineDied: no answer"),
        ("errors.EngineStartFailed('killed')", TransientProcessFailure, "exit code 75: EngineStartFailed: killed"),
        ("errors.StoreUnavailable('down')", TransientProcessFailure, "exit code 75: StoreUnavailable: down"),
        ("errors.EpochLost('newer')", ProcessFailed, "exit code 1: EpochLost: newer"),
        ("RuntimeError('odd')", ProcessFailed, "exit code 1: RuntimeError: odd"),
        ("ExceptionGroup('all', [errors.EngineDied('a'), ValueError('b')])", ProcessFailed, "1: ValueError: b"),
        ("ExceptionGroup('all', [errors.EngineDied('a')])", TransientProcessFailure, "75: EngineDied: a"),
        ("ExceptionGroup('all', [errors.ConfigurationError('c')])", ConfigurationError, "^c$"),
    ],
)
async def test_an_error_is_reported_with_its_type(
    tmp_path: Path, raised: str, expected: type[DriftlineError], says: str
) -> None:
    argv = child(tmp_path, f"def main():\n    raise {raised}\nchild_main(main)")
    with pytest.raises(expected, match=says) as caught:
        await supervise(argv)
    assert type(caught.value) is expected
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (expected, str(caught.value))


async def test_a_failure_carries_the_end_of_the_log(tmp_path: Path) -> None:
    argv = child(tmp_path, "for i in range(50): sys.stderr.write(f'line {i}.\\n')\nsys.exit(3)")
    with pytest.raises(ProcessFailed, match="ended with exit code 3") as caught:
        await supervise(argv)
    message = str(caught.value)
    assert "line 49." in message
    assert "line 30." in message
    assert "line 29." not in message


async def test_a_usage_error_with_exit_code_2_is_no_configuration_error_of_ours() -> None:
    with pytest.raises(ProcessFailed, match="usage: wrong"):
        await supervise([sys.executable, "-c", "import sys; sys.stderr.write('usage: wrong'); sys.exit(2)"])


async def test_death_by_a_signal_may_be_mended_by_a_restart() -> None:
    with pytest.raises(TransientProcessFailure, match="ended by SIGKILL"):
        await supervise([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])


async def test_a_command_that_cannot_be_started() -> None:
    with pytest.raises(ProcessFailed, match="cannot start '/nowhere/nothing'"):
        await supervise(["/nowhere/nothing"])


async def test_a_coroutine_function_may_be_the_main_function(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        async def main():
            await asyncio.sleep(0)
            emit({"event": "result", "ok": True})
        child_main(main)
        """,
    )
    assert (await supervise(argv)).result == {"event": "result", "ok": True}


async def test_a_thread_that_never_ends_does_not_keep_the_child(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        from driftline.process import child as side
        side.EXIT_DEADLINE_S = 0.2
        child_main(lambda: threading.Thread(target=time.sleep, args=(600,)).start())
        """,
    )
    async with asyncio.timeout(20):
        assert (await supervise(argv)).exit_code == 0


async def test_grandchildren_go_with_a_child_that_ends(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        f"""
        def main():
            held = dict(stdout=2, stderr=2)
            plain = subprocess.Popen([sys.executable, "-c", {IGNORING!r}], **held)
            escaped = subprocess.Popen([sys.executable, "-c", {IGNORING!r}], start_new_session=True, **held)
            emit({{"event": "result", "pids": [plain.pid, escaped.pid]}})
        child_main(main)
        """,
    )
    async with asyncio.timeout(20):
        outcome = await supervise(argv)
    assert outcome.result is not None
    assert all(gone_within(pid, 2) for pid in outcome.result["pids"])


@pytest.mark.parametrize("style", ["plain", "coroutine", "asyncio inside"])
async def test_cancelling_stops_the_child_cleanly(tmp_path: Path, style: str) -> None:
    marker = tmp_path / "cleaned"
    argv = child(
        tmp_path,
        f"""
        def clean():
            open({str(marker)!r}, "w").close()
        def plain():
            try: emit({{"event": "ready"}}), time.sleep(600)
            finally: clean()
        async def coroutine():
            try:
                emit({{"event": "ready"}})
                await asyncio.sleep(600)
            finally: clean()
        def inside():
            asyncio.run(coroutine())
        child_main({{"plain": plain, "coroutine": coroutine, "asyncio inside": inside}}[{style!r}])
        """,
    )
    ear, before = Ear(), psutil.Process().children()
    task = asyncio.create_task(supervise(argv, on_event=ear.on_event, on_log=ear.log.append, stop_deadline_s=10))
    await ear.heard("ready")
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marker.exists()
    assert time.monotonic() - began < 5
    assert psutil.Process().children() == before


async def test_what_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        f"""
        def main():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            inner = subprocess.Popen([sys.executable, "-c", {IGNORING!r}], stdout=subprocess.PIPE)
            inner.stdout.readline()
            emit({{"event": "ready", "pids": [os.getpid(), inner.pid]}})
            time.sleep(600)
        child_main(main)
        """,
    )
    ear, before = Ear(), psutil.Process().children()
    task = asyncio.create_task(supervise(argv, on_event=ear.on_event, stop_deadline_s=0.3))
    pids = (await ear.heard("ready"))["pids"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(gone_within(pid, 2) for pid in pids)
    assert psutil.Process().children() == before


async def test_a_second_cancellation_kills_at_once(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        def main():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            emit({"event": "ready", "pid": os.getpid()})
            time.sleep(600)
        child_main(main)
        """,
    )
    ear = Ear()
    task = asyncio.create_task(supervise(argv, on_event=ear.on_event, stop_deadline_s=600))
    pid = (await ear.heard("ready"))["pid"]
    task.cancel()
    await asyncio.sleep(0.05)
    assert alive(pid)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert gone_within(pid, 2)


async def test_a_listener_that_raises_ends_the_child(tmp_path: Path) -> None:
    seen: list[int] = []

    def refuse(event: Mapping[str, Any]) -> None:
        seen.append(event["pid"])
        raise LookupError("the listener broke")

    argv = child(
        tmp_path,
        """
        def main():
            emit({"event": "ready", "pid": os.getpid()})
            time.sleep(600)
        child_main(main)
        """,
    )
    with pytest.raises(LookupError, match="the listener broke"):
        await supervise(argv, on_event=refuse, stop_deadline_s=5)
    assert gone_within(seen[0], 2)


SUPERVISORS = {
    "leads its group": """
        asyncio.run(supervise(ARGV, on_event=lambda e: print(*e["pids"], flush=True)))
        """,
    "shares a group": """
        p = subprocess.Popen(ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        print(*json.loads(p.stdout.readline())["pids"], flush=True)
        p.wait()
        """,
    "somebody else holds the lifeline": """
        out, hold = os.pipe()
        holder = subprocess.Popen(["sleep", "30"], pass_fds=[hold], stdout=2)
        p = subprocess.Popen(ARGV, stdin=out, stdout=subprocess.PIPE, start_new_session=True)
        print(*json.loads(p.stdout.readline())["pids"], flush=True)
        p.wait()
        """,
}


@pytest.mark.parametrize("stops", ["cleanly", "not at all"])
@pytest.mark.parametrize("supervisor", list(SUPERVISORS))
def test_a_killed_supervisor_takes_its_child_along(tmp_path: Path, supervisor: str, stops: str) -> None:
    argv = child(
        tmp_path,
        f"""
        def main():
            if {stops!r} == "not at all":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            inner = subprocess.Popen([sys.executable, "-c", {IGNORING!r}], stdout=subprocess.PIPE)
            escaped = subprocess.Popen(
                [sys.executable, "-c", {IGNORING!r}], stdout=subprocess.PIPE, start_new_session=True
            )
            inner.stdout.readline(), escaped.stdout.readline()
            emit({{"event": "ready", "pids": [os.getpid(), inner.pid, escaped.pid]}})
            time.sleep(600)
        from driftline.process import child as side
        side.ORPHAN_STOP_S = 0.5
        child_main(main)
        """,
    )
    code = "import asyncio, json, os, subprocess\nfrom driftline.process import supervise\n"
    code += f"ARGV = {argv!r}\n" + textwrap.dedent(SUPERVISORS[supervisor])
    pids: list[int] = []
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            pids = [int(pid) for pid in process.stdout.readline().split()]
            assert len(pids) == 3
            assert all(alive(pid) for pid in pids)
            process.kill()
            assert all(gone_within(pid, 5) for pid in pids)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_a_closed_lifeline_ends_the_child_though_its_parent_lives(tmp_path: Path) -> None:
    argv = child(tmp_path, "child_main(lambda: (emit({'event': 'ready'}), time.sleep(600)))")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            process.stdin.close()
            assert process.wait(timeout=5) == -signal.SIGKILL  # it takes the rest of its group along
        finally:
            process.kill()


def test_without_a_pipe_for_stdin_there_is_no_lifeline(tmp_path: Path) -> None:
    argv = child(tmp_path, "child_main(lambda: (time.sleep(0.4), emit({'event': 'result'})))")
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True)
    assert done.stdout == b'{"event": "result"}\n'


def test_the_lifeline_can_be_switched_off(tmp_path: Path) -> None:
    argv = child(tmp_path, "child_main(lambda: (time.sleep(0.4), emit({'event': 'result'})), lifeline=False)")
    done = subprocess.run(argv, input=b"", capture_output=True, timeout=30, check=True)
    assert done.stdout == b'{"event": "result"}\n'


def test_a_child_stopped_by_sigterm_says_so_even_when_its_parts_fail_on_the_way(tmp_path: Path) -> None:
    argv = child(
        tmp_path,
        """
        def main():
            try: emit({"event": "ready"}), time.sleep(600)
            except KeyboardInterrupt: raise errors.EngineDied("its engine got the signal, too") from None
        child_main(main)
        """,
    )
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 143
        assert rest == b""
