"""What a flow run says goes through its worker; it must not depend on it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.logs import forward

ROOT = Path(__file__).resolve().parents[3]
TALK = """
import sys, time
from pathlib import Path
import flows
from prefect.logging import get_logger
from prefect.logging.configuration import setup_logging
setup_logging()
Path(sys.argv[1], "ready").touch()
while not Path(sys.argv[1], "alone").exists():
    time.sleep(0.02)
for number in range(3):
    get_logger("tests").warning("line %d", number)
Path(sys.argv[1], "lives").touch()
"""


def test_a_flow_run_goes_on_when_nobody_reads_its_output(tmp_path: Path):
    talking = subprocess.Popen(
        [sys.executable, "-c", TALK, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert talking.stdout is not None
    try:
        while not (tmp_path / "ready").exists():
            assert talking.poll() is None
        talking.stdout.close()
        (tmp_path / "alone").touch()
        talking.wait(30)
        assert (tmp_path / "lives").exists()
    finally:
        talking.kill()
        talking.wait()


@pytest.mark.parametrize(
    ("line", "level", "said"),
    [
        ("2026-11-30 19:53:01,708 INFO driftline.training.loop: step 1", "INFO", "driftline.training.loop: step 1"),
        (
            "(EngineCore pid=8369) WARNING 11-30 19:58:20 [cpu_worker.py:114] no tcmalloc",
            "WARNING",
            "(EngineCore pid=8369) [cpu_worker.py:114] no tcmalloc",
        ),
        ("ERROR 11-30 19:58:20 [core.py:1] out of memory", "ERROR", "[core.py:1] out of memory"),
        ("a print at 2026-11-30 19:53:01,708 INFO of it", "INFO", "a print at 2026-11-30 19:53:01,708 INFO of it"),
        ("stray words", "INFO", "stray words"),
    ],
)
def test_a_line_of_a_child_has_the_loggers_time_alone(
    line: str, level: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        forward(logging.getLogger("child"), line)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, said)]
