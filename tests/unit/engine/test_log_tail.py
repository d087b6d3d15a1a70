"""The end of a child's log is kept, and all of it is passed on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from driftline.engine.log_tail import LogTail


def test_what_children_print_is_kept_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    tail = LogTail(lines=3)
    with tail.inherited():
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys, time; input(); [print(n, file=sys.stderr) for n in range(9)]"],
            stdin=subprocess.PIPE,
        )
    child.communicate(b"\n")
    tail.wait(10)
    assert tail.text == "\n  6\n  7\n  8"
    assert capfd.readouterr().err.split() == [str(n) for n in range(9)]


def test_afterwards_this_process_prints_where_it_did(capfd: pytest.CaptureFixture[str]) -> None:
    tail = LogTail()
    with tail.inherited():
        os.write(1, b"within\n")
    tail.wait(10)
    os.write(1, b"after\n")
    os.write(2, b"too\n")
    assert tail.text == "\n  within"
    out, err = capfd.readouterr()
    assert (out, err) == ("after\n", "within\ntoo\n")


def test_without_a_child_there_is_nothing() -> None:
    tail = LogTail()
    tail.wait(1)
    assert tail.text == ""
