"""Set-up: what it does again and what not, and how pip's settings reach uv."""

import json
import stat
import sys
from pathlib import Path

import pytest

from infra import set_up

SETTINGS = r"""
import sys
assert sys.argv[1:] == ["-m", "pip", "config", "list"]
print(":env:.find-links='/wheels /more'")
print("global.find-links='/ignored'")
print("global.extra-index-url='\\nhttps://a/simple\\nhttps://b/simple'")
print("global.cert='/certificates.pem'")
"""


def executable(path: Path, code: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An environment whose Python works, and a record of the steps that were taken."""
    executable(tmp_path / "venv" / "bin" / "python", "")
    (tmp_path / "lock").write_text("a==1\n")
    taken: list[str] = []
    monkeypatch.setattr(set_up, "install_packages", lambda environment, lock: taken.append("packages"))
    monkeypatch.setattr(set_up, "install_project", lambda environment: taken.append("project"))
    return taken


def run(tmp_path: Path) -> None:
    set_up.set_up(tmp_path / "venv", tmp_path / "lock")


def test_the_second_time_does_nothing(tmp_path: Path, steps: list[str]) -> None:
    run(tmp_path)
    assert steps == ["packages", "project"]
    run(tmp_path)
    assert steps == ["packages", "project"]


def test_another_lock_does_everything_again(tmp_path: Path, steps: list[str]) -> None:
    run(tmp_path)
    (tmp_path / "lock").write_text("a==2\n")
    run(tmp_path)
    assert steps == ["packages", "project"] * 2


def test_a_step_that_failed_is_taken_up_where_it_stopped(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(environment: Path) -> None:
        raise set_up.SetUpError("no network")

    with monkeypatch.context() as broken:
        broken.setattr(set_up, "install_project", fail)
        with pytest.raises(set_up.SetUpError):
            run(tmp_path)
    run(tmp_path)
    assert steps == ["packages", "project"]


def test_an_environment_whose_python_is_gone_is_made_again(tmp_path: Path, steps: list[str]) -> None:
    run(tmp_path)
    (tmp_path / "venv" / "bin" / "python").unlink()
    run(tmp_path)
    assert steps == ["packages", "project"] * 2


def test_a_damaged_stamp_counts_as_none(tmp_path: Path, steps: list[str]) -> None:
    for text in ("{", "[]"):
        steps.clear()
        (tmp_path / "venv" / set_up.STAMP).write_text(text)
        run(tmp_path)
        assert steps == ["packages", "project"]


def test_another_python_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(set_up, "PYTHON", (2, 7))
    (tmp_path / "lock").write_text("a==1\n")
    assert set_up.main(["--environment", str(tmp_path / "venv"), "--lock", str(tmp_path / "lock")]) == 1
    assert "make setup PYTHON=" in capsys.readouterr().err


def test_pip_s_settings_are_read_and_a_variable_wins_over_a_file(tmp_path: Path) -> None:
    python = executable(tmp_path / "python", SETTINGS)
    settings = set_up.pip_settings(str(python))
    assert settings["find-links"] == "/wheels /more"
    assert settings["extra-index-url"].split() == ["https://a/simple", "https://b/simple"]


def test_uv_is_told_what_pip_knows(tmp_path: Path) -> None:
    settings = set_up.pip_settings(str(executable(tmp_path / "python", SETTINGS)))
    variables = set_up.uv_variables(settings, {})
    assert variables["UV_FIND_LINKS"] == "/wheels,/more"
    assert variables["UV_INDEX"] == "https://a/simple https://b/simple"
    assert variables["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert variables["SSL_CERT_FILE"] == "/certificates.pem"
    assert "UV_DEFAULT_INDEX" not in variables


def test_what_the_user_told_uv_stays() -> None:
    variables = set_up.uv_variables({"find-links": "/wheels"}, {"UV_FIND_LINKS": "/mine"})
    assert "UV_FIND_LINKS" not in variables


def test_without_uv_pip_installs_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(set_up, "make_environment", lambda environment: None)
    monkeypatch.setattr(set_up, "pip_settings", lambda python: {})
    monkeypatch.setattr(set_up, "install_uv", lambda python, lock: False)
    monkeypatch.setattr(set_up, "run", lambda command, env=None: commands.append(command))
    set_up.install_packages(tmp_path, tmp_path / "lock")
    (command,) = commands
    assert command[1:] == ["-m", "pip", "install", "--no-deps", "--requirement", str(tmp_path / "lock")]


def test_a_command_that_fails_is_named() -> None:
    with pytest.raises(set_up.SetUpError, match="ended with 3"):
        set_up.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_stamp_holds_a_digest_for_each_step(tmp_path: Path, steps: list[str]) -> None:
    run(tmp_path)
    stamp = json.loads((tmp_path / "venv" / set_up.STAMP).read_text())
    assert stamp.keys() == {"packages", "project"}
    assert all(len(value) == 64 for value in stamp.values())


APT_GET = """
import pathlib, sys
folder = pathlib.Path(__file__).parent
with (folder / "calls").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "install" and {works}:
    (folder / "bwrap").write_text("#!/bin/sh\\n")
    (folder / "bwrap").chmod(0o755)
"""


@pytest.mark.parametrize("works", [True, False])
def test_programs_that_are_missing_are_installed_by_root_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool
) -> None:
    executable(tmp_path / "apt-get", APT_GET.format(works=works))
    executable(tmp_path / "google-chrome", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    set_up.install_programs(root=True)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "update -qq",
        "install -y -qq --no-install-recommends bubblewrap",
    ]
    told = capsys.readouterr().err
    assert ("bubblewrap is missing" in told) is not works
    if works:
        set_up.install_programs(root=True)
        assert len((tmp_path / "calls").read_text().splitlines()) == 2, "what is there is not installed again"


def test_without_root_set_up_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executable(tmp_path / "apt-get", "raise SystemExit(1)")
    monkeypatch.setenv("PATH", str(tmp_path))
    set_up.install_programs(root=False)
    told = capsys.readouterr().err
    assert "apt-get install bubblewrap" in told
    assert "apt-get install chromium" in told
