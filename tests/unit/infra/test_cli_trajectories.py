"""`driftline trajectories show`: which episodes it takes, and what it prints and writes of them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from driftline import cli, cli_reach, params
from driftline.cli_trajectories import printable
from driftline.engine.tokens import character_tokenizer
from driftline.records import GiveUp, Group, GroupUse, ModelSource, PolicyVersion, Segment, Trajectory
from driftline.store import client
from driftline.store.files import entry_of
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tests.support import records
from tests.support.records import RUN

Show = Callable[..., Result]
TOKENIZER = character_tokenizer("?>:=abcd0123456789\n\x1b")
KEY = "models/d0/tokenizer.json"


def member(group: int, number: int, *parts: str, **changes: object) -> Trajectory:
    """An episode in which others and the policy say `parts` in turn, the second turn after an update."""
    ids = [TOKENIZER.encode(part, add_special_tokens=False).ids for part in parts]
    flat = tuple(one for part in ids for one in part)
    mask = tuple(bool(turn % 2) for turn, part in enumerate(ids) for _ in part)
    starts = list(itertools.accumulate((len(part) for part in ids), initial=0))
    return replace(
        records.trajectory(group, number),
        token_ids=flat,
        loss_mask=mask,
        logprobs=tuple(-0.5 if own else 0.0 for own in mask),
        segments=tuple(Segment(start, turn) for turn, start in enumerate(starts[1:-1:2], 4)),
        request_seconds=((1000.0, 1001.0), (1001.0, 1001.25), (1001.25, 1002.0)),
        stratum="pointer_chase/v1/level 2",
        **changes,
    )


def group(number: int) -> Group:
    solved = member(number, 0, "?a\n", ">a\n", ":12\n", "=12\n", reward=1.0, success=True)
    failed = member(number, 1, f"?{number}\n", "=9\n", reward=None, success=None, status="timeout", reason="late")
    return Group(number, f"task-{number}", "v1", (solved, failed))


@pytest.fixture
def runs() -> RunStore:
    """Step 1 trained on group 1 and gave up 2, which was never played; 3 is finished since, and 4 after it."""
    ticks = itertools.count(1000)
    store = MemoryStore(clock=lambda: float(next(ticks)))
    body = TOKENIZER.to_str().encode()
    store.put(KEY, body)
    runs = RunStore(store, RUN)
    runs.create(records.description(model=ModelSource("d0", "models/d0/", (entry_of(KEY, body),), False)))
    etag = runs.create_head(records.head())
    key = runs.append_groups("c1", 0, [group(1)])
    use = GroupUse(1, key, 1, "task-1", "v1", 1.0, 2, 1, 1.0, 0.0, 1.0, 0.0, 0, 8)
    record = replace(records.step_record(1, None), groups=(use,), give_ups=(GiveUp(2, "expired", 0),))
    step = runs.write_step(record)
    runs.swap_head(records.head(step=1, version=PolicyVersion(1, 1), record=step), etag)
    runs.append_groups("c0", 0, [group(3), group(4)])
    return runs


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: RunStore) -> Iterator[Show]:
    monkeypatch.setenv("DRIFTLINE_WORK_DIR", str(tmp_path / "stack"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    params.settings.cache_clear()
    monkeypatch.setattr(cli_reach, "adopt_environment", lambda values: None)
    monkeypatch.setattr(client, "open_store", lambda settings: runs.store)
    yield lambda *arguments: CliRunner().invoke(cli.app, ["trajectories", "show", *arguments])
    params.settings.cache_clear()


def test_an_episode_as_a_person_reads_it(show: Show) -> None:
    result = show("--step", "1", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "group 1 member 0 attempt 1\n"
        "  task task-1  of v1\n"
        "  environment pointer_chase/v1  stratum pointer_chase/v1/level 2\n"
        "  policy version 4 to 5  reward 1  success yes  status ok\n"
        "  prompt\n    | ?a\n"
        "  policy (version 4, 3 tokens, mean log-probability -0.5 nats, 1 s)\n    | >a\n"
        "  tool (0.25 s)\n    | :12\n"
        "  policy (version 5, 4 tokens, mean log-probability -0.5 nats, 0.75 s)\n    | =12\n"
        "\n"
        f"run {RUN}: 1 episode of 2; --limit 2 shows all\n"
    )


def test_one_that_failed_says_why_and_has_no_reward(show: Show) -> None:
    said = show("--group", "1").stdout
    assert "reward -  success -  status timeout (late)" in said
    assert said.endswith(f"run {RUN}: 2 episodes\n")


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        ((), [4, 4, 3, 3, 1, 1]),
        (("--limit", "3"), [4, 4, 3]),
        (("--step", "1"), [1, 1]),
        (("--group", "1"), [1, 1]),
        (("--group", "3"), [3, 3]),
    ],
)
def test_which_episodes_are_taken(show: Show, tmp_path: Path, arguments: tuple[str, ...], groups: list[int]) -> None:
    path = tmp_path / "episodes.json"
    assert show(*arguments, "--json", str(path)).exit_code == 0
    assert [one["group"] for one in json.loads(path.read_text())] == groups


def test_the_file_holds_what_is_printed_in_numbers(show: Show, tmp_path: Path) -> None:
    path = tmp_path / "episodes.json"
    show("--group", "3", "--run", RUN, "--limit", "1", "--json", str(path))
    [found] = json.loads(path.read_text())
    assert (found["run"], found["task"], found["stratum"]) == (RUN, "task-3", "pointer_chase/v1/level 2")
    assert (found["reward"], found["success"], found["status"], found["prompt"]) == (1.0, True, "ok", "?a\n")
    assert [(one["speaker"], one["text"]) for one in found["said"]] == [
        ("policy", ">a\n"), ("tool", ":12\n"), ("policy", "=12\n"),
    ]  # fmt: skip
    assert (found["said"][2]["policy_versions"], found["said"][2]["tokens"]) == ([5], 4)


def test_numbers_that_json_does_not_have_are_null(show: Show, runs: RunStore, tmp_path: Path) -> None:
    odd = member(9, 0, "?a\n", "=1\n")
    odd = replace(odd, logprobs=(math.nan,) * len(odd.token_ids))
    runs.append_groups("c0", 1, [Group(9, "task-9", "v1", (odd,))])
    path = tmp_path / "episodes.json"
    assert show("--group", "9", "--json", str(path)).exit_code == 0
    assert "NaN" not in path.read_text()
    assert json.loads(path.read_text())[0]["mean_logprob_nats"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--step", "2"), "no step 2: it has steps 1 to 1"),
        (("--group", "2"), "group 2 of run 'run-1' was given up (expired) and left no trajectories"),
        (("--group", "7"), "no finished group 7"),
        (("--step", "1", "--group", "1"), "give one of them"),
        (("--run", "other"), "no run 'other'"),
    ],
)
def test_what_is_not_there_is_said_with_the_remedy(show: Show, arguments: tuple[str, ...], said: str) -> None:
    result = show(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_objects_that_are_gone_or_damaged(show: Show, runs: RunStore) -> None:
    [key] = [use.key for use in runs.steps()[0].groups]
    runs.store.put(key, b"no Parquet")
    assert "passed over" not in show().stdout
    assert "group 4" in show().stdout, "the others are shown"
    assert show("--step", "1").exit_code == 1
    runs.store.delete([key])
    assert "collected as garbage perhaps" in show("--group", "1").stderr
    runs.store.delete([info.key for info in runs.store.list(f"runs/{RUN}/trajectories/")])
    assert "no finished group that can be read" in show().stderr


def test_what_a_policy_writes_gives_a_terminal_no_orders(show: Show, runs: RunStore) -> None:
    runs.append_groups("c0", 1, [Group(9, "task-9", "v1", (member(9, 0, "?a\x1b\n", "=\x1b1\n"),))])
    said = show("--group", "9").stdout
    assert "| ?a\\x1b\n" in said
    assert "| =\\x1b1\n" in said
    assert printable("a\x1b[2Jb\r\x07 ü\t€") == "a\\x1b[2Jb\\r\\x07 ü\t€"
