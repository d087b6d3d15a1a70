"""Child processes: their environment, their processors, their logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from tasks import logs, processes, surroundings


def test_no_processor_named_is_no_pinning():
    assert surroundings.pinned(()) == []


def test_a_processor_that_is_not_there_is_refused():
    with pytest.raises(ConfigurationError, match="there is no processor 100000 on this machine"):
        surroundings.pinned((0, 100000))


async def test_a_child_runs_on_its_processor_alone_with_the_variables_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = tmp_path / "found"
    (tmp_path / "look.py").write_text(
        f'import os, pathlib\npathlib.Path({str(found)!r}).write_text(f"{{os.sched_getaffinity(0)}} '
        "{os.environ['OF_THE_CHILD']} {os.environ['OF_THE_PARENT']}\")"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OF_THE_PARENT", "2")
    await processes.run_module("look", env={"OF_THE_CHILD": "1"}, cpus=(0,))
    assert found.read_text() == "{0} 1 2"


def test_a_trainer_on_one_processor_runs_one_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    params = RunParameters.model_validate({"training": {"cpus": [1]}})
    assert surroundings.training_environment(params)["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-29 19:51:30 ERROR driftline.engine: it died", logging.ERROR),
        ("WARNING 11-29 19:51 [vllm] slow", logging.WARNING),
        ("2026-11-29 INFO driftline: step 3", logging.INFO),
        ("Loading weights: 100%", logging.INFO),
        ("x" * 100 + " ERROR far behind", logging.INFO),
    ],
)
def test_a_childs_line_keeps_its_level(line: str, level: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    logs.forward(logging.getLogger("driftline.tasks"), line)
    assert [(record.levelno, record.message) for record in caplog.records] == [(level, line)]


def test_free_ports_are_free():
    import socket

    port = processes.free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert 1023 < port < 65536
