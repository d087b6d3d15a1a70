"""`repo_repair/v1` in the sandbox: episodes, the judge, and the catalogue's faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from driftline.environment import StepResult, Task
from driftline.environment.tools import TOO_LATE
from driftline.errors import EnvironmentFailed
from driftline.sandbox import open_sandbox
from environments.repo_repair import RepoRepair, validation
from environments.repo_repair.catalogue import Fault, Repository, faults, repositories
from environments.repo_repair.episode import Episode
from environments.repo_repair.family import tool_call
from environments.repo_repair.scoring import PROFILE, score, show_tests, sound
from environments.repo_repair.state import task_of
from environments.repo_repair.validation import all_faults, check_sound

FAMILY = RepoRepair()
TASK = FAMILY.generate(0, 1)[0]
MODULE = f"{TASK.payload['repository']}.py"


@pytest.fixture
async def episode() -> AsyncIterator[Episode]:
    environment = FAMILY.make(max_turns=8)
    yield environment
    await environment.close()


async def say(environment: Episode, name: str, **arguments: str) -> str:
    result = await environment.step(tool_call(name, **arguments))
    assert result.reward is None
    return result.messages[0].content


async def test_an_episode_by_hand(episode: Episode) -> None:
    prompt = await episode.reset(TASK, seed=0)
    assert [message.role for message in prompt] == ["system", "user"]
    assert MODULE in prompt[1].content
    assert f"{MODULE} (" in await say(episode, "list_files")
    assert await say(episode, "read_file", path=MODULE) == TASK.payload["files"][MODULE]
    assert "FAILED test_" in await say(episode, "run_tests")
    edit, submit = FAMILY.oracle(TASK)
    assert (await episode.step(edit)).messages[0].content == "done"
    told = await say(episode, "run_tests")
    assert told.split()[0] == told.split()[2], told
    judged = await episode.step(submit)
    assert (judged.reward, judged.success, judged.terminated) == (1.0, True, True)
    assert judged.reward_parts == {"fail_to_pass": 1.0, "pass_to_pass": 0.0}
    with pytest.raises(EnvironmentFailed, match="has ended"):
        await episode.step(submit)


async def test_no_call_after_submit_is_carried_out(episode: Episode) -> None:
    edit, submit = FAMILY.oracle(TASK)
    await episode.reset(TASK, seed=0)
    judged = await episode.step(submit + edit + tool_call("run_tests"))
    assert (judged.reward, judged.success, judged.terminated) == (0.0, False, True), "as it stood at submit"
    told = [message.content for message in judged.messages]
    assert told == ["submitted", TOO_LATE, TOO_LATE]
    await episode.reset(TASK, seed=0)
    judged = await episode.step(edit + submit + submit)
    assert (judged.reward, [message.content for message in judged.messages]) == (1.0, ["done", "submitted", TOO_LATE])


async def test_doing_nothing_earns_nothing(episode: Episode) -> None:
    await episode.reset(TASK, seed=0)
    judged = await episode.step(tool_call("submit"))
    assert (judged.reward, judged.success) == (0.0, False)
    assert list(judged.info["failed"]) == sorted(TASK.payload["fail_to_pass"])


async def test_breaking_all_costs(episode: Episode) -> None:
    await episode.reset(TASK, seed=0)
    text = TASK.payload["files"][MODULE]
    await say(episode, "edit", path=MODULE, old=text, new="raise SystemExit(0)\n")
    judged = await episode.step(tool_call("submit"))
    assert judged.reward_parts == {"fail_to_pass": 0.0, "pass_to_pass": -1.0}
    assert judged.reward == -1.0


async def test_the_last_turn_is_judged_as_it_stands() -> None:
    environment = FAMILY.make(max_turns=1)
    try:
        await environment.reset(TASK, seed=0)
        judged = await environment.step(FAMILY.oracle(TASK)[0])
        assert (judged.reward, judged.truncated, judged.terminated) == (1.0, True, False)
    finally:
        await environment.close()


async def test_what_the_policy_does_wrong_is_told(episode: Episode) -> None:
    await episode.reset(TASK, seed=0)
    assert "call a tool" in (await episode.step("I think it is fine.")).messages[0].content
    assert "no tool 'delete'" in await say(episode, "delete")
    for path in ("missing.py", "../etc/passwd", "/etc/passwd", ""):
        assert (await say(episode, "read_file", path=path)).startswith("error: ")
    assert "occurs 0 times" in await say(episode, "edit", path=MODULE, old="no such text", new="")


async def test_no_hidden_test_is_in_the_sandbox_of_the_policy(episode: Episode) -> None:
    await episode.reset(TASK, seed=0)
    tests = f"test_{MODULE}"
    name = TASK.payload["fail_to_pass"][0]
    look = f"""
import os
found = []
for folder, names, files in os.walk("/"):
    names[:] = [one for one in names if os.path.join(folder, one) not in ("/usr", "/proc", "/dev", "/root")]
    for one in files:
        try:
            if "def " + "{name}(" in open(os.path.join(folder, one), errors="replace").read(10**6):
                found.append(one)
        except OSError:
            pass

def test_look():
    assert [os.path.exists("/hidden"), found] == [False, []]
"""
    old = TASK.payload["files"][tests]
    assert await say(episode, "edit", path=tests, old=old, new=look) == "done"
    assert (await say(episode, "run_tests")).startswith("1 of 1 tests pass")


async def test_an_episode_is_taken_up_from_its_snapshot(episode: Episode) -> None:
    await episode.reset(TASK, seed=0)
    await episode.step(FAMILY.oracle(TASK)[0])
    snapshot = await episode.snapshot()
    assert list(snapshot["changed"]) == [MODULE], "the difference alone"
    other = FAMILY.make(max_turns=8)
    try:
        await other.restore(TASK, snapshot)
        assert await other.snapshot() == snapshot
        assert (await other.step(tool_call("submit"))).success is True
        for broken in (None, {}, {"turns_left": 1, "changed": {"x": "?"}}, {"turns_left": 1, "changed": {"y": None}}):
            with pytest.raises(EnvironmentFailed, match="no snapshot"):
                await other.restore(TASK, broken)
    finally:
        await other.close()


CHEATS = {
    "equal to everything": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def __getattr__(name): return lambda *a, **k: Equal()
""",
    "exit": "import sys\nsys.exit(0)\n",
    "hard exit": "import os\nos._exit(0)\n",
    "a patched json": "import json\njson.dumps = lambda *a, **k: '[]'\n",
    "a patched runner": """
import sys
frame = sys._getframe()
while frame:
    for name in ("recorded", "compared", "plain", "failure_of", "judge"):
        if name in frame.f_globals:
            frame.f_globals[name] = lambda *a, **k: None
    frame = frame.f_back
""",
    "lines of its own": """
import atexit, json, re
text = open("/hidden/tests.py").read()
for name in re.findall(r"def (test_\\w+)", text):
    print(json.dumps({"test": name, "values": "[]"}), flush=True)
""",
    "other tests": "open('checks.py', 'w').write('raised = lambda *a: None')\nopen('test_roman.py', 'w').write('')\n",
    "no end": "while True: pass\n",
    "sleep": "import time\ntime.sleep(100)\n",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "output": "while True: print('x' * 1000)\n",
    "no memory": "x = []\nwhile True: x.append(bytearray(10**6))\n",
    "nothing": "",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_no_cheat_is_rewarded(cheat: str) -> None:
    repository = repositories()["roman"]
    files = sound(repository) | {"roman.py": CHEATS[cheat].encode()}
    try:
        verdict = await score(repository, files)
    except EnvironmentFailed:
        if cheat != "sleep":
            raise
        # No reward either: on a busy machine, who sleeps cannot be told from who is kept waiting.
        return
    assert not verdict.passed, cheat


async def test_an_empty_repository_fails_and_one_without_a_fault_passes() -> None:
    repository = repositories()["lru"]
    assert not (await score(repository, {})).passed
    files = sound(repository) | {"test_lru.py": b"broken(", "checks.py": b"broken(", "junk": bytes(1000)}
    assert not (await score(repository, files)).failed, "tests are the repository's, whatever the policy left"


async def test_no_room_for_the_tests_is_the_policy_s_doing() -> None:
    repository = repositories()["lru"]
    files = sound(repository) | {f"junk{number}": bytes(2**20) for number in range(4)}
    assert (await score(repository, files)).failed


async def test_other_backends_judge_the_same() -> None:
    family = RepoRepair(backend="none")
    environment = family.make(max_turns=4)
    try:
        with pytest.warns(UserWarning, match="no walls"):
            await environment.reset(TASK, seed=0)
        await environment.step(family.oracle(TASK)[0])
        with pytest.warns(UserWarning, match="no walls"):
            judged: StepResult = await environment.step(tool_call("submit"))
        assert judged.reward == 1.0
    finally:
        await environment.close()


def some_faults() -> list[Fault]:
    """The first of every repository."""
    return list({fault.repository: fault for fault in reversed(faults())}.values())


@pytest.mark.parametrize("fault", some_faults(), ids=lambda fault: fault.repository)
async def test_a_fault_fails_what_the_catalogue_says(fault: Fault) -> None:
    repository = repositories()[fault.repository]
    await check_sound(repository)
    task: Task = task_of(FAMILY.id, fault)
    files = {path: text.encode() for path, text in task.payload["files"].items()}
    verdict = await score(repository, files)
    assert sorted(verdict.failed) == sorted(fault.fail_to_pass)
    assert sorted(verdict.passed) == sorted(fault.pass_to_pass)
    sandbox = await open_sandbox(files, PROFILE)
    try:
        assert "FAILED" in await show_tests(sandbox, repository.tests_path)
    finally:
        await sandbox.close()


LATE = Repository(
    "late",
    module="import time\n\n\ndef total(a, b):\n    time.sleep(0.6)\n    return a + b\n",
    tests="from late import total\n\n\ndef test_total():\n    assert total(2, 3) == 5\n",
    hidden="from late import total\n\n\n"
    "def test_more():\n    assert total(1, 3) == 4\n\n\ndef test_none():\n    assert 1 == 1\n",
    checks="",
)


async def test_a_busy_machine_has_no_say_in_what_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tests take wall clock, as on such a machine, and hardly any processor time."""
    monkeypatch.setattr(validation, "PROFILE", replace(PROFILE, wall_s=0.3))
    found = await validation.all_faults(LATE)
    assert [(fault.mutation.replacement, fault.fail_to_pass) for fault in found] == [("(a - b)", ("test_more",))]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", list(repositories()))
async def test_the_catalogue_is_what_validation_finds(name: str) -> None:
    found = await all_faults(repositories()[name])
    assert tuple(found) == tuple(fault for fault in faults() if fault.repository == name)
