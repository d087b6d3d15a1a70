"""Supervision with real processes: what is heard of a child, and which errors it ends in."""

from __future__ import annotations

import asyncio
import pickle
import sys
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError, DriftlineError, ProcessFailed, TransientProcessFailure
from driftline.process import supervise
from driftline.process.supervisor import LINE_LIMIT_BYTES
from tests.support.supervised import Ear, child


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
        (
            "errors.EngineError('it cut a turn')",
            TransientProcessFailure,
            "exit code 75: EngineError: it cut a turn",
        ),
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
