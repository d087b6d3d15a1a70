"""Building DeepSpeed's operator: a lock that a killed build left behind does not stop the next one."""

import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError
from driftline.params import Settings
from driftline.training import extensions

TORCH = importlib.util.find_spec("torch")
assert TORCH is not None
assert TORCH.origin is not None
BATON = Path(TORCH.origin).parent / "utils" / "file_baton.py"
"""torch's own lock, without the seconds that importing torch takes."""
HOLD = (
    f"import runpy, sys; baton = runpy.run_path({str(BATON)!r})['FileBaton'](sys.argv[1]); "
    "assert baton.try_acquire(); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    (tmp_path / extensions.OPERATOR).mkdir()
    return tmp_path / extensions.OPERATOR / "lock"


def test_a_lock_is_kept_while_its_holder_lives_and_removed_after_it_was_killed(tmp_path: Path, lock: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert extensions.clear_stale_locks(tmp_path) == []
    assert lock.exists()
    holder.kill()
    holder.communicate()
    assert lock.exists()
    assert extensions.clear_stale_locks(tmp_path) == [lock]
    assert not lock.exists()


def test_a_lock_that_this_process_holds_is_kept(tmp_path: Path, lock: Path) -> None:
    baton = runpy.run_path(str(BATON))["FileBaton"](str(lock))
    assert baton.try_acquire()
    assert extensions.clear_stale_locks(tmp_path) == []
    baton.release()
    assert extensions.clear_stale_locks(tmp_path) == []


def test_what_is_built_is_not_built_again(tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lock.parent / f"{extensions.OPERATOR}.so").touch()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    before = dict(os.environ)
    assert extensions.build(tmp_path) < 5
    assert dict(os.environ) == before


def test_without_a_compiler_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"install a C\+\+ compiler"):
        extensions.build(tmp_path)


def test_each_pair_of_versions_and_each_environment_has_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(cache_dir=tmp_path)  # pyright: ignore[reportCallIssue]
    here = settings.torch_extensions_dir
    assert here.is_relative_to(tmp_path)
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert settings.torch_extensions_dir != here
