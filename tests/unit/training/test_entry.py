"""What the trainer's process says before it loads anything heavy."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driftline.errors import ConfigurationError, EpochLost, LimitExceeded, ObjectMissing, StoreUnavailable
from driftline.records import Head
from driftline.store.memory import MemoryStore
from driftline.training import entry, lean_imports
from tests.support.training import FakeGroup, new_run, parameters


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryStore:
    store = MemoryStore()
    monkeypatch.setattr(entry, "open_store", lambda settings: store)
    monkeypatch.setattr(entry, "settings", lambda: SimpleNamespace(work_dir=tmp_path, mlflow_uri=None))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return store


def test_an_unknown_run_is_named(store: MemoryStore):
    with pytest.raises(ObjectMissing, match="no run 'nowhere'"):
        entry.train("nowhere")


def test_the_ranks_must_be_those_of_the_run(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    new_run(store, "r", parameters())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match=r"training\.ranks is 1, but 2 processes"):
        entry.train("r")


def test_a_run_that_is_over_is_left_alone(store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    run_store = new_run(store, "r", parameters())
    monkeypatch.setattr(entry, "_run_rank", None)
    head = run_store.end("cancelled")
    entry.train("r")
    assert run_store.read_head()[0] == head


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (LimitExceeded("no batch"), "failed"),
        (StoreUnavailable("a restart may mend it"), "running"),
        (EpochLost("another trainer"), "running"),
    ],
)
def test_only_what_a_restart_does_not_mend_fails_the_run(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, state: str
):
    from driftline.training.loop import TrainingLoop

    def run(loop: TrainingLoop) -> Head:
        raise error

    params = parameters()
    run_store = new_run(store, "r", params)
    monkeypatch.setattr(TrainingLoop, "run", run)
    group: Any = FakeGroup()
    with pytest.raises(type(error)):
        entry._lead(run_store, run_store.describe(), params, group, tmp_path)
    head, _ = run_store.read_head()
    assert head.state == state
    assert head.reason == ("LimitExceeded: no batch" if state == "failed" else "")


def test_scikit_learn_is_hidden_only_while_transformers_loads(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    monkeypatch.delitem(sys.modules, "transformers.generation.candidate_generator", raising=False)
    monkeypatch.setattr(lean_imports.importlib, "import_module", lambda name: seen.append(sys.modules["sklearn"]))
    lean_imports.import_transformers()
    assert seen == [None]
    assert "sklearn" not in sys.modules
