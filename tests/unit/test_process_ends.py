"""Supervision with real processes: how a child ends, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
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

from driftline.process import supervise
from tests.support.supervised import IGNORING, Ear, alive, child, gone_within


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
