"""The adapters on the real packages: Gymnasium's own environments, a task set on verifiers, OpenEnv's own template.

None of them is in the lock, so they are fetched, which takes minutes: all of it is slow. They keep the contract.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from driftline.adapters.openenv import OpenEnv
from driftline.environment import Task
from driftline.environment.checks import check
from driftline.errors import EnvironmentFailed
from tests.support.apart import ROOT, beside_ours, on_their_own, ours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SUPPORT = ROOT / "tests" / "support"
DIGITS = "openenv_digits:app"
GYMNASIUM, MINIGRID = "gymnasium==1.4.0", "minigrid==3.2.0"
VERIFIERS, OPENENV = "verifiers==0.4.0", "openenv==0.10.0"
NOT_THE_LOCKS = ("mcp", "mcp-types", "openai")
"""Verifiers 0.4.0 takes older ones, which vLLM takes as well (docs/decisions/0023-adapters.md)."""

CHECK = """
import json, sys
from driftline.environment.checks import check_all
reports = check_all(sys.argv[1:])
found = {report.name: [[one.check, one.verdict, one.detail] for one in report.findings] for report in reports}
print(json.dumps(found))
"""
PLAY = """
import asyncio, json, sys
from driftline.environment import resolve

async def play(name, *actions):
    family = resolve(name)
    task = family.generate(seed=0, count=1)[0]
    environment = family.make(max_turns=20)
    try:
        said = [message.content for message in await environment.reset(task, seed=0)]
        results = [await environment.step(action.format(**task.payload.get("data", {}))) for action in actions]
    finally:
        await environment.close()
    last = results[-1]
    print(json.dumps({
        "prompt": said, "versions": task.payload["versions"], "reward": last.reward, "parts": dict(last.reward_parts),
        "success": last.success, "terminated": last.terminated, "before": [one.reward for one in results[:-1]],
    }))

asyncio.run(play(*sys.argv[1:]))
"""
IDLE = {
    "levels of difficulty",
    "oracle solves",
    "another task's answer does not solve",
    "the alphabet covers what is said",
}


def verify(findings: list[list[str]], idle: set[str]) -> None:
    """Every check passed, but those that have nothing to examine."""
    assert [one for one in findings if one[1] == "failed"] == []
    assert {one[0] for one in findings if one[1] == "not applicable"} == idle


def last_line(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def gymnasium(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return beside_ours(tmp_path_factory.mktemp("gymnasium"), GYMNASIUM, MINIGRID)


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = beside_ours(tmp_path_factory.mktemp("verifiers"), VERIFIERS, other_than_locked=NOT_THE_LOCKS)
    found["PYTHONPATH"] += f":{ROOT / 'tests' / 'support' / 'tasksets'}"
    return found


def test_gymnasiums_environments_keep_the_contract(gymnasium: dict[str, str]) -> None:
    module = "tests.support.gymnasium_families"
    own = [f"{module}:{name}" for name in ("LAKE", "SLIPPERY", "BLACKJACK", "GRID", "PARROT")]
    names = [*own, "gymnasium/FrozenLake-v1/v1"]
    found = last_line(ours(CHECK, gymnasium, *names))
    for name in names:
        verify(found[name], IDLE)


def test_the_frozen_lake_is_crossed(gymnasium: dict[str, str]) -> None:
    way = ("down", "down", "right", "right", "down", "right")
    played = last_line(ours(PLAY, gymnasium, "tests.support.gymnasium_families:LAKE", *way))
    assert played["prompt"][0].split("\n\n")[1].strip() == "<red>S</red>FFF\nFHFH\nFFFH\nHFFG"
    assert (played["reward"], played["success"], played["terminated"]) == (1.0, True, True)
    assert played["before"] == [None] * 5
    assert played["versions"] == {"gymnasium": "1.4.0"}


def test_the_grid_is_crossed(gymnasium: dict[str, str]) -> None:
    way = ("forward", "forward", "right", "forward", "forward")
    played = last_line(ours(PLAY, gymnasium, "tests.support.gymnasium_families:GRID", *way))
    observed = json.loads(played["prompt"][0].split("\n\n")[1])
    assert observed["mission"] == "get to the green goal square"
    assert (len(observed["image"]), observed["direction"]) == (7, 0)
    assert (played["reward"], played["success"]) == (pytest.approx(1 - 0.9 * 5 / 30), True)
    assert played["versions"] == {"gymnasium": "1.4.0", "minigrid": "3.2.0"}


def test_a_hand_of_cards_is_shown_whole(gymnasium: dict[str, str]) -> None:
    played = last_line(ours(PLAY, gymnasium, "tests.support.gymnasium_families:BLACKJACK", "stick"))
    assert len(json.loads(played["prompt"][0].split("\n\n")[1])) == 3


def test_a_task_set_keeps_the_contract(verifiers: dict[str, str]) -> None:
    found = last_line(ours(CHECK, verifiers, "verifiers/addition_v1/v1"))
    verify(found["verifiers/addition_v1/v1"], IDLE)


@pytest.mark.parametrize(
    ("answer", "parts", "success"),
    [
        ("{answer}", {"right": 1.0, "brief": 0.25}, True),
        ("it is {answer}", {"right": 1.0, "brief": 0.0}, True),
        ("no", {"right": 0.0, "brief": 0.25}, False),
    ],
)
def test_its_rewards_score_an_answer(
    verifiers: dict[str, str], answer: str, parts: dict[str, float], success: bool
) -> None:
    played = last_line(ours(PLAY, verifiers, "verifiers/addition_v1/v1", answer))
    assert (played["parts"], played["reward"]) == (parts, sum(parts.values()))
    assert (played["success"], played["terminated"]) == (success, True)
    assert played["versions"] == {"verifiers": "0.4.0"}


@pytest.fixture(scope="module")
def openenv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with OpenEnv alone."""
    return on_their_own(tmp_path_factory.mktemp("openenv") / "environment", OPENENV)


@contextmanager
def served(programs: Path, app: str, folder: Path, log: Path, *more: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """An app of OpenEnv's on loopback; gives its URL and the server's process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(programs / "python"), "-m", "uvicorn", app, "--app-dir", str(folder), "--port", str(port), *more]
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        _await(url, log)
        yield url, server
    finally:
        server.kill()
        server.wait(timeout=30)


def template_of(programs: Path, directory: Path, sessions: int) -> str:
    """Have OpenEnv make the environment of its own template, an echo; returns its app."""
    made = [str(programs / "openenv"), "init", "echoing", "--output-dir", str(directory)]
    subprocess.run(made, cwd=directory, check=True, capture_output=True, timeout=600)
    app = directory / "echoing" / "server" / "app.py"
    text = app.read_text()
    assert "max_concurrent_envs=1," in text
    app.write_text(text.replace("max_concurrent_envs=1,", f"max_concurrent_envs={sessions},"))
    return "echoing.server.app:app"


def _await(url: str, log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()[-4000:]}")


def test_openenvs_own_template_keeps_the_contract(openenv: Path, tmp_path: Path) -> None:
    app = template_of(openenv, tmp_path, sessions=16)
    with served(openenv, app, tmp_path, tmp_path / "log") as (url, _):
        report = check(f"openenv/{url}/v1")
        verify([[one.check, one.verdict, one.detail] for one in report.findings], IDLE)
        task = OpenEnv(url).generate(0, 1)[0]
        assert task.payload["field"] == "message"


async def test_a_server_that_is_full_says_so(openenv: Path, tmp_path: Path) -> None:
    app = template_of(openenv, tmp_path, sessions=1)
    with served(openenv, app, tmp_path, tmp_path / "log") as (url, _):
        family = OpenEnv(url)
        task = (await asyncio.to_thread(family.generate, 0, 1))[0]
        first, second = family.make(), family.make()
        try:
            await first.reset(task, seed=0)
            with pytest.raises(EnvironmentFailed, match=r"is full .*: raise its max_concurrent_envs"):
                await second.reset(task, seed=0)
        finally:
            await first.close()
            await second.close()


async def test_a_server_that_is_gone_is_a_failure_and_no_reward(openenv: Path, tmp_path: Path) -> None:
    with served(openenv, DIGITS, SUPPORT, tmp_path / "log") as (url, server):
        async with episode(url) as (environment, _):
            server.kill()
            server.wait(timeout=30)
            with pytest.raises(EnvironmentFailed, match="step"):
                await environment.step("1")
        with pytest.raises(EnvironmentFailed, match="cannot be reached"):
            async with episode(url, task=Task.create("openenv/digits/v1", {})):
                pass


async def test_a_policy_may_take_its_time_over_a_turn(openenv: Path, tmp_path: Path) -> None:
    """Uvicorn ends connections whose pong is late; aiohttp sends one only while it receives."""
    pings = ("--ws-ping-interval", "0.2", "--ws-ping-timeout", "0.2")
    with served(openenv, DIGITS, SUPPORT, tmp_path / "log", *pings) as (url, _):
        async with episode(url) as (environment, number):
            await asyncio.sleep(3)
            assert (await environment.step(str(number))).success


async def test_rewards_success_and_refusals_are_the_servers(openenv: Path, tmp_path: Path) -> None:
    with served(openenv, DIGITS, SUPPORT, tmp_path / "log") as (url, _):
        async with episode(url) as (environment, number):
            refused = await environment.step("eleven")
            assert "That is no action: guess: Input should be '0', '1'" in refused.messages[0].content
            assert refused.reward is None
            wrong = await environment.step(str((number + 1) % 10))
            assert wrong.messages[0].content in ("More.", "Less.")
            last = await environment.step(str(number))
            assert (last.reward, last.success, last.terminated) == (0.875, True, True)
            assert last.messages[0].content == "That one."


async def test_a_validator_of_the_servers_own_ends_its_session(openenv: Path, tmp_path: Path) -> None:
    """OpenEnv 0.10.0 cannot send what such a validator raised: documented, with `act` as the way round."""
    with served(openenv, DIGITS, SUPPORT, tmp_path / "log") as (url, _):
        async with episode(url) as (environment, _):
            with pytest.raises(EnvironmentFailed, match="SESSION_ERROR"):
                await environment.step("odd")


@asynccontextmanager
async def episode(url: str, task: Task | None = None) -> AsyncIterator[tuple[Any, int]]:
    """An episode of the digits that has begun, and the digit."""
    family = OpenEnv(url, name="digits")
    task = task or (await asyncio.to_thread(family.generate, 0, 1))[0]
    environment = family.make(max_turns=5)
    try:
        prompt = await environment.reset(task, seed=0)
        assert [one.content for one in prompt] == ["Which digit?"]
        yield environment, Random(task.payload["seed"]).randrange(10)
    finally:
        await environment.close()
