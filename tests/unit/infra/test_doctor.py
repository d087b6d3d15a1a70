"""The doctor's findings, each with its remedy."""

import shutil
import socket
from pathlib import Path

import pytest

from driftline.params import Settings
from infra import doctor
from infra.layout import Layout, Ports, StackState, write_state

LOCK = "# pins\nnumpy==2.3.5\ntyping_extensions==4.16.0 ; python_version < '4'\ntorch==2.13.0+cpu\n"


def settings(**values: object) -> Settings:
    return Settings(**values)  # pyright: ignore


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.of(Path("stack"), tmp_path)


def test_pins_are_read_under_one_spelling() -> None:
    assert doctor.read_pins(LOCK) == {"numpy": "2.3.5", "typing-extensions": "4.16.0", "torch": "2.13.0+cpu"}


def test_an_environment_in_step_with_the_lock_is_fine(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    (finding,) = doctor.lock_in_sync(tmp_path / "lock", {**doctor.read_pins(LOCK), "more": "1"})
    assert finding.verdict == "ok"
    assert "all 3 pins" in finding.detail


def test_packages_that_are_missing_or_other_are_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    (finding,) = doctor.lock_in_sync(tmp_path / "lock", {"numpy": "1.0", "torch": "2.13.0+cpu"})
    assert finding.verdict == "wrong"
    assert finding.detail == "numpy 1.0 instead of 2.3.5, typing-extensions is missing"
    assert finding.remedy == "make setup"


def test_what_runs_these_tests_is_in_step_with_the_lock() -> None:
    (finding,) = doctor.lock_in_sync(Path("requirements/cpu.lock"), doctor.installed_versions())
    assert finding.verdict == "ok", finding.detail


def test_little_disk_is_wrong(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    layout.create()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(9, 8, 2**30))  # pyright: ignore
    disk = next(finding for finding in doctor.room(layout) if finding.subject == "disk")
    assert (disk.verdict, disk.detail) == ("wrong", f"1.0 GiB free at {layout.root}")


def test_the_sandbox_is_tried() -> None:
    (finding,) = doctor.sandbox(settings())
    assert (finding.verdict, finding.detail) == ("ok", "bubblewrap runs programs")
    (without,) = doctor.sandbox(settings(sandbox="none"))
    assert without.verdict == "note"


def test_a_port_held_by_another_is_wrong_before_the_start(layout: Layout, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        findings = list(doctor.stack_state(layout, settings(s3_port=port)))
    (taken,) = [finding for finding in findings if finding.subject == f"port {port}"]
    assert taken.verdict == "wrong"
    assert taken.remedy == ".venv/bin/driftline up --s3-port N"


def test_a_stack_that_is_down_is_no_fault_of_its_store(layout: Layout, tmp_path: Path) -> None:
    layout.create()
    write_state(layout, StackState(Ports(4200, 5000, 8333, *range(21800, 21807)), "driftline"))
    (finding,) = doctor.store(layout, settings(s3_endpoint="http://127.0.0.1:8333"))
    assert (finding.verdict, finding.remedy) == ("note", ".venv/bin/driftline up")


def test_a_store_that_does_not_answer_is_wrong(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROBE_PATIENCE_S", 0.1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    (finding,) = doctor.store(layout, settings(s3_endpoint="http://127.0.0.1:9"))
    assert finding.verdict == "wrong"
    assert "DRIFTLINE_S3_ENDPOINT" in finding.remedy


def test_a_check_that_fails_becomes_a_finding(layout: Layout, tmp_path: Path) -> None:
    findings = doctor.examine(layout, settings())
    (missing,) = [finding for finding in findings if "cpu.lock" in finding.detail]
    assert missing.verdict == "wrong"
    assert {"python", "disk", "memory", "stack", "store"} <= {finding.subject for finding in findings}
