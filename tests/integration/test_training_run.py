"""The trainer's real processes over a real store: killed, replaced, resumed, and in two ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from driftline import cli_runs
from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.records import Head, ModelSource
from driftline.store import keys
from driftline.store.client import S3Store
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.training import base_model
from driftline.weights.assemble import assemble, assemble_onto
from driftline.weights.tensors import HeldWeights
from tests.support.seaweed import Seaweed
from tests.support.training import OPEN, GroupStream, new_run, parameters, random_group, tiny_model

pytestmark = pytest.mark.timeout(900)
DEADLINE_S = 300.0


class Cell:
    """Finishes the groups that the admission rule lets start, at most `allowed` of them."""

    def __init__(self, run_store: RunStore, params: RunParameters) -> None:
        self.allowed = 0
        self._run_store = run_store
        self._params = params
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        begun, stream, rng = 0, GroupStream(self._run_store), Random(7)
        while not self._stopped.wait(0.05):
            head, _ = self._run_store.read_head()
            if head.version is None:
                continue
            admitted = head.spent + self._params.rollout.groups_per_step + head.lead_groups
            last = min(admitted, self.allowed)
            run, version = self._run_store.run, head.version.number
            groups = [random_group(n, rng, version=version, run=run) for n in range(begun, last)]
            if groups:
                stream.write(*groups)
                begun = last


class Trainer:
    """The trainer's process (or processes)."""

    def __init__(self, run: str, seaweed: Seaweed, work_dir: Path, ranks: int = 1) -> None:
        env = {
            **os.environ,
            **seaweed.environment,
            "DRIFTLINE_WORK_DIR": str(work_dir),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
        }
        self.processes: list[subprocess.Popen[str]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            with (work_dir / f"{run}-{rank}.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "driftline.training.entry", "--run", run],
                    env=env if ranks == 1 else {**env, **place, **where},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            self.processes.append(process)

    def kill(self) -> None:
        os.killpg(self.processes[0].pid, signal.SIGKILL)
        self.processes[0].wait()

    def end(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Exit codes, and the events of rank 0."""
        codes = [process.wait(DEADLINE_S) for process in self.processes]
        assert self.processes[0].stdout is not None
        return codes, [json.loads(line) for line in self.processes[0].stdout]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def wait_for(run_store: RunStore, condition: Callable[[Head], bool]) -> Head:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        head, _ = run_store.read_head()
        if condition(head):
            return head
        time.sleep(0.01)
    raise AssertionError(f"not in {DEADLINE_S} s: {run_store.read_head()}")


@pytest.fixture(scope="module")
def model(s3_store: S3Store, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    directory = tiny_model(tmp_path_factory.mktemp("model"))
    return base_model.publish(s3_store, "0123456789abcdef" * 2, directory, "a tiny Llama")


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    """Whatever is put here is closed."""
    things: list[Any] = []
    yield things
    for thing in reversed(things):
        thing.close() if isinstance(thing, Trainer) else thing.stop()


def test_a_trainer_that_is_killed_or_replaced_loses_nothing(
    s3_store: S3Store,
    seaweed: Seaweed,
    model: ModelSource,
    tmp_path: Path,
    closing: list[Any],
    monkeypatch: pytest.MonkeyPatch,
):
    """OpenRLHF#1322, NeMo-RL#3480: what was finished stays, step numbers go on, no group is used twice.

    Published in bfloat16, at a rate at which few elements change: the chain of deltas goes on, too.
    """
    training = {"steps": 5, "learning_rate": 1e-5}
    params = parameters(training=training, publication={"dtype": "bfloat16", "chain_factor": 40.0}, admission=OPEN)
    run_store = new_run(s3_store, "killed", params, model)
    cell = Cell(run_store, params)
    closing.append(cell)

    first = Trainer("killed", seaweed, tmp_path)
    closing.append(first)
    cell.allowed = 4
    wait_for(run_store, lambda head: head.step == 2)
    first.kill()

    second = Trainer("killed", seaweed, tmp_path)
    closing.append(second)
    cell.allowed = 6
    wait_for(run_store, lambda head: head.step == 3)
    run_store.take_epoch()
    cell.allowed = 10
    codes, events = second.end()
    assert codes == [1]
    assert events[-1]["type"] == "EpochLost"
    head, _ = run_store.read_head()
    assert (head.step, head.state) == (3, "running")

    third = Trainer("killed", seaweed, tmp_path)
    closing.append(third)
    codes, events = third.end()
    assert codes == [0], (tmp_path / "killed-0.log").read_text()[-3000:]
    assert events[-1] == {"event": "result", "step": 5, "version": "000005-0004", "state": "finished"}

    head, _ = run_store.read_head()
    assert (head.step, head.spent, head.state) == (5, 10, "finished")
    records = run_store.steps()
    assert [record.step for record in records] == [1, 2, 3, 4, 5]
    assert [record.epoch for record in records] == [1, 1, 2, 4, 4]
    assert sorted(use.group for record in records for use in record.groups) == list(range(10))
    mismatches = [record.metrics.get(metrics.RESUME_MISMATCH) for record in records]
    assert mismatches == [None, None, 0.0, 0.0, None], "each resumed trainer reproduced the published weights"
    manifests = [run_store.read_manifest(record.version_out) for record in records]
    assert [manifest.kind for manifest in manifests] == ["delta"] * 5
    changed = [(manifest.changed_elements or 0) / manifest.elements for manifest in manifests]
    assert max(changed) <= 0.05, changed
    held = HeldWeights(run_store.read_manifest(records[0].version_in), {})
    held.tensors.update(assemble(s3_store, held.manifest))
    followed = assemble_onto(s3_store, manifests[-1], held)
    late = assemble_onto(s3_store, manifests[-1], None)
    assert (followed.deltas, late.deltas) == (5, 5)
    assert all(torch.equal(followed.held.tensors[name], tensor) for name, tensor in late.held.tensors.items())
    digests = [dict(manifest.tensors) for manifest in manifests]
    assert all(a != b for a, b in pairwise(digests)), "every step changes the weights"
    assert {span.lane for span in run_store.spans()} >= {"training", "publish", "waiting/train"}
    named = records[-1].checkpoint
    assert named is not None
    assert s3_store.get(named.key).body
    replay_agrees(run_store, 4, seaweed, tmp_path, monkeypatch)
    overheads = [record.times.committed - record.times.train_end for record in records]
    assert min(overheads) < 1.0


def replay_agrees(
    run_store: RunStore, step: int, seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`driftline replay`: the step again from objects alone, in a process of its own."""
    for name, value in {**seaweed.environment, "DRIFTLINE_WORK_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    log: list[str] = []
    result = cli_runs.replay(run_store, step, log.append)
    assert result["agrees"], (result, log)
    record = run_store.steps()[step - 1]
    figures = result["figures"]
    for name in (metrics.LOSS, metrics.GRADIENT_NORM, metrics.K1, metrics.K3, metrics.ESS_FRACTION):
        assert figures[name]["record"] == record.metrics[name]
        assert figures[name]["replay"] == pytest.approx(record.metrics[name], abs=1e-5, rel=1e-5)
    assert record.metrics[metrics.GRADIENT_NORM] > 0.01
    with pytest.raises(ConfigurationError, match="there is no step 9"):
        cli_runs.replay(run_store, 9, log.append)


def test_two_ranks_train_one_run(
    s3_store: S3Store, seaweed: Seaweed, model: ModelSource, tmp_path: Path, closing: list[Any]
):
    params = parameters(training={"steps": 2, "ranks": 2, "zero_stage": 3}, admission=OPEN)
    run_store = new_run(s3_store, "two-ranks", params, model)
    cell = Cell(run_store, params)
    closing.append(cell)
    cell.allowed = 4
    trainer = Trainer("two-ranks", seaweed, tmp_path, ranks=2)
    closing.append(trainer)
    codes, events = trainer.end()
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in sorted(tmp_path.glob("*.log")))
    assert [event["event"] for event in events] == ["ready", "progress", "progress", "result"]
    manifest = run_store.read_manifest(run_store.steps()[-1].version_out)
    assert len(manifest.tensors) == 21
    prefix = f"{keys.run_prefix('two-ranks')}checkpoints/"
    files = [info.key for info in s3_store.list(prefix)]
    assert sum("zero_pp_rank_1" in key for key in files) >= 1, "the state of both ranks is in the checkpoint"
