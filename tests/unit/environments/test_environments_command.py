from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftline import cli_environments
from driftline.cli import app
from driftline.environment import registered

FAULTY = "tests.support.faulty_environments"
run = CliRunner().invoke


def test_the_list_names_every_family_and_where_it_runs(tmp_path: Path) -> None:
    answer = run(app, ["environments", "list", "--json", str(tmp_path / "list.json")])
    assert answer.exit_code == 0, answer.output
    rows = {row["id"]: row for row in json.loads((tmp_path / "list.json").read_text())}
    assert rows["pointer_chase/v1"] == {
        "id": "pointer_chase/v1",
        "runs_in": "loop",
        "graded": True,
        "found_in": "environments",
    }
    assert all(name in answer.output for name in rows)


def test_one_environment_is_counted_in_the_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"arithmetic/v1": registered()["arithmetic/v1"]}
    monkeypatch.setattr(cli_environments, "registered", lambda: one)
    assert "\n1 environment, and those" in run(app, ["environments", "list"]).output


def test_a_family_that_keeps_the_contract_ends_with_0(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    answer = run(app, ["environments", "check", "arithmetic/v1", "--tasks", "1", "--json", str(written)])
    assert answer.exit_code == 0, answer.output
    assert "1 of 1 keep the contract" in answer.output
    [report] = json.loads(written.read_text())
    assert (report["environment"], report["ok"]) == ("arithmetic/v1", True)
    assert [one["check"] for one in report["checks"] if one["verdict"] != "ok"] == [
        "levels of difficulty",
        "the alphabet covers what is said",
    ]


def test_one_that_does_not_ends_with_1_and_a_remedy() -> None:
    answer = run(app, ["environments", "check", f"{FAULTY}:NoVersion", f"{FAULTY}:WrongOracle", "--tasks", "1"])
    assert answer.exit_code == 1
    assert "2 of 2 failed" in answer.output
    assert "return None from oracle where there is none" in " ".join(answer.output.split())


@pytest.mark.parametrize("arguments", [[], ["--all", "arithmetic/v1"]])
def test_names_or_all_must_be_said(arguments: list[str]) -> None:
    answer = run(app, ["environments", "check", *arguments])
    assert answer.exit_code == 2
    assert "or say --all" in answer.output


def test_outside_of_a_checkout_it_says_that_only_installed_families_are_known(tmp_path: Path) -> None:
    paths = [str(Path(one) / "src") for one in sys.path if (Path(one) / "src" / "driftline").is_dir()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", "from driftline.cli import app; app()", "environments", "list"]
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "run it from the checkout's root" in answer.stderr
    assert "run it from" not in run(app, ["environments", "list"]).output


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    answer = run(app, ["environments", "check", "pointer-chase/v1"])
    assert answer.exit_code == 2
    assert "did you mean 'pointer_chase/v1'?" in answer.output
