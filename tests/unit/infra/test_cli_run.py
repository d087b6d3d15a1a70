"""`driftline run` and `driftline demo`: what they start, how they follow it, and how they end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from driftline import cli, cli_reach, cli_run, params
from driftline.errors import StackError
from driftline.store import client
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from infra import follow, stack, web
from infra.follow import FlowRun
from infra.layout import Layout, Ports, StackState, write_state
from tests.support import records

STATE = StackState(Ports(4200, 5000, 8333, *range(21800, 21807)), "driftline")
FLOW_RUN = FlowRun("f1", "brave-otter", "post-training/local", "20260101-020304-f1")
Run = Callable[..., Result]


@dataclass
class Prefect:
    """Stands for the server, which has two deployments."""

    made: list[tuple[str, Mapping[str, Any] | None]] = field(default_factory=list[Any])
    followed: list[tuple[str, float]] = field(default_factory=list[Any])
    reported: list[tuple[str, Path | None]] = field(default_factory=list[Any])
    ends: BaseException | None = None
    """What the following is ended by."""

    def deployments_of(self, state: StackState, flow: str) -> dict[str, Mapping[str, Any]]:
        assert (state, flow) == (STATE, "post-training")
        small = {"model": {"source": "smollm2", "rendering": "chat"}, "rollout": {"groups_per_step": 64}}
        return {"local": {}, "smollm2": {"params": small}}

    def create(self, state: StackState, deployment: str, parameters: Mapping[str, Any] | None = None) -> FlowRun:
        self.made.append((deployment, parameters))
        return FLOW_RUN

    def follow(
        self,
        state: StackState,
        flow_run: FlowRun,
        tell: Callable[[str], None],
        *,
        deadline_s: float,
        progress: Callable[[], str | None],
    ) -> None:
        self.followed.append((flow_run.run, deadline_s))
        tell(f"progress: {progress()}")
        if self.ends is not None:
            raise self.ends


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Prefect:
    found = Prefect()
    for name in ("deployments_of", "create", "follow"):
        monkeypatch.setattr(follow, name, getattr(found, name))
    monkeypatch.setattr(stack, "up", lambda *arguments: STATE)
    monkeypatch.setattr(stack, "is_running", lambda layout: True)
    monkeypatch.setattr(cli_run, "print_report", lambda layout, run, path: found.reported.append((run, path)))
    return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> Iterator[Run]:
    monkeypatch.setenv("DRIFTLINE_WORK_DIR", str(tmp_path / "stack"))
    params.settings.cache_clear()
    monkeypatch.setattr(cli_reach, "adopt_environment", lambda values: None)
    monkeypatch.setattr(client, "open_store", lambda settings, patience_s: store)
    layout = Layout.of(tmp_path / "stack", Path.cwd())
    layout.create()
    write_state(layout, STATE)
    yield lambda *arguments: CliRunner().invoke(cli.app, arguments)
    params.settings.cache_clear()


def test_a_run_is_started_with_what_is_given_followed_and_reported(run: Run, prefect: Prefect) -> None:
    result = run("run", "--param", "training.steps=4", "--param", "seed=2", "--json", "f.json")
    assert result.exit_code == 0, result.output
    assert prefect.made == [("post-training/local", {"params": {"training": {"steps": 4}, "seed": 2}})]
    assert prefect.followed == [("20260101-020304-f1", float("inf"))]
    assert prefect.reported == [("20260101-020304-f1", Path("f.json"))]
    assert "run 20260101-020304-f1, flow run brave-otter: http://127.0.0.1:4200/runs/flow-run/f1\n" in result.stdout


def test_without_parameters_the_deployment_has_its_own(run: Run, prefect: Prefect) -> None:
    assert run("run").exit_code == 0
    assert prefect.made == [("post-training/local", None)]


def test_what_is_given_is_merged_into_what_the_deployment_has(run: Run, prefect: Prefect) -> None:
    result = run("run", "--deployment", "post-training/smollm2", "--param", "overlap.lead_groups=300")
    assert result.exit_code == 0, "that lead is right for its batches"
    model, batch = {"source": "smollm2", "rendering": "chat"}, {"groups_per_step": 64}
    wanted = {"params": {"model": model, "rollout": batch, "overlap": {"lead_groups": 300}}}
    assert prefect.made == [("post-training/smollm2", wanted)]


def test_a_wrong_name_is_told_without_a_stack_and_right_ones_are_told_of_the_stack(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "is_running", lambda layout: False)
    for wrong in ("training.stpes=4", "training.steps=-4", "steps=4"):
        result = run("run", "--param", wrong)
        assert result.exit_code == 2
        assert "steps" in result.stderr
        assert "the local stack" not in result.stderr
    for right in ("training.steps=4", "overlap.lead_groups=300"):
        assert "the local stack is not running" in run("run", "--param", right).stderr, "the deployment may fit it"


def test_a_prefect_that_does_not_answer_is_named(run: Run, prefect: Prefect, monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(*arguments: object) -> None:
        raise web.Unanswered("POST failed")

    monkeypatch.setattr(follow, "deployments_of", unanswered)
    result = run("run")
    assert result.exit_code == 1
    assert "Prefect does not answer at http://127.0.0.1:4200: see `.venv/bin/driftline status`" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--param", "training.stpes=4"), "did you mean 'training.steps'?"),
        (("--param", "overlap.lead_groups=300"), "lower it to 128"),
        (("--param", "environment.id=pointer_chase/v9"), "did you mean 'pointer_chase/v1'?"),
        (
            ("--deployment", "smolm2"),
            "--deployment smolm2: post-training has no such deployment: did you mean 'smollm2'?",
        ),
        (("--deployment", "x"), "known: local, smollm2"),
        (("--detach", "--json", "f.json"), "leave --detach out"),
    ],
)
def test_what_is_wrong_is_one_line_and_no_flow_run_is_made(
    run: Run, prefect: Prefect, arguments: tuple[str, ...], said: str
) -> None:
    result = run("run", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert prefect.made == []


def test_without_a_stack_that_runs_the_way_to_one_is_said(
    run: Run, prefect: Prefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "is_running", lambda layout: False)
    result = run("run")
    assert (result.exit_code, prefect.made) == (1, [])
    assert "run `.venv/bin/driftline up`" in result.stderr


def assert_says_how_to_go_on(result: Result) -> None:
    assert "driftline report --run 20260101-020304-f1" in result.stdout
    assert "prefect flow-run cancel f1" in result.stdout


def test_detached_it_is_not_followed(run: Run, prefect: Prefect) -> None:
    result = run("run", "--detach")
    assert (result.exit_code, prefect.followed, prefect.reported) == (0, [], [])
    assert_says_how_to_go_on(result)


def test_control_c_leaves_the_run_going(run: Run, prefect: Prefect) -> None:
    prefect.ends = KeyboardInterrupt()
    result = run("run")
    assert (result.exit_code, prefect.reported) == (130, [])
    assert "the run goes on" in result.stdout
    assert_says_how_to_go_on(result)


def test_a_run_that_fails_has_no_report(run: Run, prefect: Prefect) -> None:
    prefect.ends = StackError("post-training/local did not complete: out of road")
    result = run("run")
    assert (result.exit_code, prefect.reported) == (1, [])
    assert "out of road" in result.stderr


def test_progress_is_that_of_the_run(run: Run, prefect: Prefect, store: MemoryStore) -> None:
    assert f"progress: {cli_run.PREPARING}" in run("run").stdout
    runs = RunStore(store, FLOW_RUN.run)
    runs.create(records.description(FLOW_RUN.run, parameters={"training": {"steps": 9}}))
    etag = runs.create_head(records.head())
    assert f"progress: step 0 of 9{cli_run.STARTING}" in run("run").stdout
    runs.swap_head(dataclasses.replace(records.head(), step=3), etag)
    assert "progress: step 3 of 9" in run("run").stdout


def test_the_demonstration_fails_when_its_run_does(run: Run, prefect: Prefect) -> None:
    prefect.ends = StackError("post-training/local did not complete")
    result = run("demo")
    assert (result.exit_code, prefect.reported) == (1, [])
    assert "post-training/local did not complete" in result.stderr
    assert "the stack is still up" in result.stderr
    assert prefect.made == [("post-training/local", None)]


def test_the_demonstration_ends_with_the_report(run: Run, prefect: Prefect) -> None:
    result = run("demo", "--json", "figures.json")
    assert result.exit_code == 0, result.output
    assert prefect.reported == [("20260101-020304-f1", Path("figures.json"))]
    assert prefect.followed == [("20260101-020304-f1", 3600)]
    assert "driftline down" in result.stdout
