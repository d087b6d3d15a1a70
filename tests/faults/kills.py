"""Kills at a real stack, and counts what its runs have kept: `python -m tests.faults.kills --kills 50 --json FILE`

The harness only kills, with SIGKILL and at moments drawn from a seed; what restarts is the product. Several runs
share the kills: each goes on to its last step, then everything is counted from its objects in S3 alone (see
`verification`). One run has real vLLM engines, the others scripted ones, whose cells start quickly. The last line of
the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from driftline.errors import DriftlineError, StackError
from driftline.params import Settings, settings
from driftline.records import Head
from driftline.store.client import open_store
from driftline.store.run_store import RunStore
from infra import stack, web
from infra.layout import Layout, StackState
from tasks.naming import run_of
from tests.faults import targets
from tests.faults.verification import Findings, Observer, verify

log = logging.getLogger("kills")

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("engine", "cell", "trainer", "trainer-flow", "parent-flow", "worker", "seaweedfs", "mlflow", "prefect")
"""What the issue of being killed is about; each gets its share of the kills."""
BESIDES = ("cell-flow", "keeper")
"""Killed now and then as well."""
RECOVERY_S = 400.0
"""How long a run may take to its next step after a kill."""
HASTE = 0.2
"""How often a kill does not wait until the one before is overcome."""
FIRST_STEP_S = 900.0
END_S = 900.0
DEPLOYMENT = "post-training/local"
PLENTY = {
    "cell_restarts": 100,
    "trainer_restarts": 100,
    "flow_run_restarts": 100,
    "resumptions": 100,
    "failed_groups": 400,
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to do."""

    kills: int
    steps: int
    seed: int
    kills_a_run: int
    publication: str | None
    learning_rate: float
    work_dir: Path


@dataclass
class Tally:
    """What was done, and what came of it."""

    findings: Findings = field(default_factory=Findings)
    kills: Counter[str] = field(default_factory=Counter[str])
    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict[str, list[float]](list))
    runs: list[str] = field(default_factory=list[str])
    metrics_missing: int = 0
    failures: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=time.monotonic)


def parameters(options: Options, engine: str, seed: int) -> dict[str, Any]:
    """A small run: a tiny model, short episodes, rewards by chance."""
    scripted = engine == "scripted"
    training: dict[str, Any] = {"steps": options.steps, "learning_rate": options.learning_rate}
    found: dict[str, Any] = {
        "seed": seed,
        "model": {"hidden_size": 64, "layers": 2, "heads": 2, "warm_start_steps": 4, "warm_start_batch": 4},
        "environment": {
            "id": "tests.support.environments:SlowDice", "task_set": "faults", "train_tasks": 64, "held_out_tasks": 4,
        },
        "rollout": {"group_size": 4, "groups_per_step": 4, "cells": 2 if scripted else 1, "lease_s": 8},
        "overlap": {"lead_groups": 4},
        "engine": {"backend": engine, "max_model_len": 128, "max_num_seqs": 32},
        "training": training,
        "limits": PLENTY,
        "tracking": {"experiment": "faults", "registered_model": "faults", "traces_every_steps": 0},
    }  # fmt: skip
    if options.publication is not None:
        found["publication"] = json.loads(options.publication)
    return found


def plan(options: Options, rng: Random) -> dict[str, list[str]]:
    """Engine backend -> the kinds of process to kill in its runs, in order. Each class has its share.

    Engines are killed in the runs that have real ones, with a few others among them.
    """
    share = [name for name in CLASSES for _ in range(options.kills // (len(CLASSES) + 1))]
    rest = [*BESIDES, *CLASSES[1:]]
    while len(share) < options.kills:
        share.append(rest[len(share) % len(rest)])
    engines = [name for name in share if name == "engine"]
    others = [name for name in share if name != "engine"]
    rng.shuffle(others)
    beside = max(0, options.kills_a_run - len(engines)) if engines else 0
    mixed = [*engines, *others[:beside]]
    rng.shuffle(mixed)
    return {"scripted": others[beside:], "vllm": mixed}


class Harness:
    """Starts runs on a stack, kills at them, and counts."""

    def __init__(self, options: Options, layout: Layout, state: StackState) -> None:
        self._options = options
        self._layout = layout
        self._api = state.ports.prefect_api
        self._rng = Random(options.seed)
        self.tally = Tally()

    def carry_out(self) -> None:
        """All runs and all kills. A run that fails is noted; kills that came too late wait for the next."""
        for engine, kinds in plan(self._options, self._rng).items():
            left, runs = kinds, 0
            while left and runs <= 2 * len(kinds) // self._options.kills_a_run + 1:
                now, left = left[: self._options.kills_a_run], left[self._options.kills_a_run :]
                left = [*self._carry_out(engine, now), *left]
                runs += 1

    def _carry_out(self, engine: str, kinds: Sequence[str]) -> list[str]:
        """One run; returns the kinds that were not killed in it."""
        run = self._start(engine, len(self.tally.runs))
        self.tally.runs.append(run)
        log.info("run %s (%s): %s", run, engine, ", ".join(kinds))
        observer = Observer(RunStore(open_store(settings(), patience_s=5.0), run))
        left = list(kinds)
        try:
            self._kill_at(observer, left)
            self._wait_for_end(run)
            observer.stop()
            self._count(run, observer)
        except (AssertionError, TimeoutError, DriftlineError) as error:
            log.exception("run %s was not carried out to its end", run)
            self.tally.failures.append(f"run {run} ({engine}): {error}")
            self._cancel_all()
        finally:
            observer.stop()
        return left

    def _count(self, run: str, observer: Observer) -> None:
        found = verify(RunStore(open_store(settings()), run), observer.committed, expected_steps=self._options.steps)
        found.notes += observer.doubles
        log.info("run %s: %s", run, found)
        self.tally.findings += found
        self.tally.metrics_missing += metrics_missing(run, self._options.steps)

    def _start(self, engine: str, number: int) -> str:
        deployment = self._ask("GET", f"deployments/name/{DEPLOYMENT}")
        document = {
            "parameters": {"params": parameters(self._options, engine, self._options.seed + number)},
            "name": f"faults-{number}",
            "state": {"type": "SCHEDULED"},
        }
        made = self._ask("POST", f"deployments/{deployment['id']}/create_flow_run", document)
        return run_of(made["id"], datetime.fromisoformat(made["expected_start_time"]), {})

    def _kill_at(self, observer: Observer, left: list[str]) -> None:
        """Kill what is left to kill, until the run is nearly over; takes from the list what was killed."""
        last = self._options.steps - 1
        self._until(lambda head: head.step >= 1, observer, FIRST_STEP_S, "the first step")
        while left:
            kind = left[0]
            hasty = self._rng.random() < HASTE
            time.sleep(self._rng.uniform(0.0, 2.0))
            before = observer.head
            assert before is not None
            if before.state in ("failed", "cancelled"):
                raise AssertionError(f"the run is {before.state}: {before.reason}")
            if before.step >= last:
                log.info("the run is nearly over: %s are left for the next", ", ".join(left))
                return
            left.pop(0)
            if not self._kill(kind):
                log.warning("nothing to kill: %s", kind)
                continue
            self.tally.kills[kind] += 1
            if hasty:
                continue
            began, before = time.monotonic(), observer.head or before
            takes_role = kind in ("trainer", "trainer-flow", "parent-flow")
            self._until(partial(overcome, before, takes_role), observer, RECOVERY_S, f"a step after {kind}")
            self.tally.recoveries[kind].append(time.monotonic() - began)
            log.info("%s: next step after %.1f s", kind, time.monotonic() - began)

    def _kill(self, kind: str) -> bool:
        """Kill one of a kind; waits until there is one."""
        until = time.monotonic() + 90
        while time.monotonic() < until:
            killed = targets.kill(self._layout.root, kind, self._rng)
            if killed is not None:
                log.info("killed %s: %s", kind, killed)
                return True
            time.sleep(0.5)
        return False

    def _until(self, condition: Any, observer: Observer, deadline_s: float, what: str) -> None:
        until = time.monotonic() + deadline_s
        while True:
            head: Head | None = observer.head
            if head is not None and (condition(head) or head.state == "finished"):
                return
            if head is not None and head.state != "running":
                raise AssertionError(f"the run is {head.state}: {head.reason}")
            if time.monotonic() > until:
                raise TimeoutError(f"{what} did not come within {deadline_s:.0f} s: head {head}")
            time.sleep(0.05)

    def _wait_for_end(self, run: str) -> None:
        """Until the last flow run of the run has completed: training, evaluation, registration, report."""
        until = time.monotonic() + END_S
        while time.monotonic() < until:
            with suppress(StackError):
                rows = self._ask("POST", "flow_runs/filter", {"flows": {"name": {"any_": ["post-training"]}}})
                mine = [row for row in rows if _run(row) == run]
                last = max(mine, key=lambda row: row["expected_start_time"])
                if last["state_type"] == "COMPLETED":
                    return
                if last["state_type"] in ("FAILED", "CANCELLED"):
                    raise AssertionError(f"the flow run ended as {last['state_type']}: {last['state']['message']}")
            time.sleep(1.0)
        raise TimeoutError(f"run {run} did not complete within {END_S:.0f} s of its last kill")

    def _cancel_all(self) -> None:
        """Cancel what a failed run has left, so that the next one can begin."""
        query = {"flows": {"name": {"any_": ["post-training"]}}}
        for row in self._ask("POST", "flow_runs/filter", query):
            if row["state_type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                document = {"state": {"type": "CANCELLING"}, "force": True}
                self._ask("POST", f"flow_runs/{row['id']}/set_state", document)

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        return web.send(method, f"{self._api}/{path}", document, patience_s=120)


def overcome(before: Head, takes_role: bool, head: Head) -> bool:
    """Whether a kill is overcome: another step is committed; where the trainer has to come back, by the new one."""
    return head.step > before.step and (head.epoch > before.epoch or not takes_role)


def _run(row: Mapping[str, Any]) -> str:
    return run_of(row["id"], datetime.fromisoformat(row["expected_start_time"]), row["parameters"])


def metrics_missing(run: str, steps: int) -> int:
    """Steps whose loss has not reached MLflow."""
    from mlflow import MlflowClient

    description = RunStore(open_store(settings()), run).describe()
    uri = settings().mlflow_uri
    if uri is None or description.mlflow_run is None:
        return 0
    history = MlflowClient(tracking_uri=uri).get_metric_history(description.mlflow_run, "train/loss")
    return len(set(range(1, steps + 1)) - {point.step for point in history})


def result(tally: Tally) -> dict[str, Any]:
    """The last line."""
    found = tally.findings
    return {
        "kills": sum(tally.kills.values()),
        "steps": found.steps,
        "groups_lost": found.groups_lost,
        "groups_twice": found.groups_twice + found.members_twice,
        "steps_lost": found.steps_lost,
        "ledger_balances": found.ledger_balances,
        "versions_wrong": found.versions_wrong,
        "deltas": found.deltas,
        "longest_chain": found.longest_chain,
        "changed_share_max": round(found.changed_share, 4),
        "tokens_lost": found.tokens_lost,
        "groups_trained": found.groups_trained,
        "groups_given_up": found.groups_given_up,
        "metrics_missing": tally.metrics_missing,
        "runs": len(tally.runs),
        "kills_by_class": dict(tally.kills),
        "recovery_p50_s": {name: round(statistics.median(s), 1) for name, s in tally.recoveries.items()},
        "recovery_max_s": {name: round(max(s), 1) for name, s in tally.recoveries.items()},
        "failures": tally.failures,
        "notes": found.notes[:20],
        "seconds": round(time.monotonic() - tally.began),
    }


@contextmanager
def running_stack(work_dir: Path) -> Any:
    """A stack of its own, on ports and with data of its own; nothing of it is left."""
    layout = Layout.of(work_dir, ROOT)
    wanted = Settings(prefect_port=24600, mlflow_port=25600, s3_port=28600)  # pyright: ignore[reportCallIssue]
    try:
        state = stack.up(layout, wanted, stack.StartOptions(auto_ports=True, start_deadline_s=500), log.info)
        os.environ.update(stack.connection(layout) or {})
        settings.cache_clear()
        yield layout, state
    finally:
        stack.down(layout)


def main() -> int:
    """Parse the command line, kill, count; the exit code says whether anything was lost."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("driftline.store.client").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description="Kill at runs of a real stack, and count what they keep.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--kills-a-run", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--publication", default=None, help="the section `publication` of the parameters, as JSON")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--json", type=Path, default=None, help="file for the figures")
    parser.add_argument("--work-dir", type=Path, default=None, help="directory of the stack; it is kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftline-faults-") as folder:
        work_dir = (given.work_dir or Path(folder)).resolve()
        options = Options(
            given.kills, given.steps, given.seed, given.kills_a_run, given.publication, given.learning_rate, work_dir
        )
        with running_stack(work_dir) as (layout, state):
            harness = Harness(options, layout, state)
            harness.carry_out()
    line = json.dumps(result(harness.tally))
    if given.json is not None:
        given.json.write_text(line + "\n")
    print(line)
    return 0 if harness.tally.findings.clean and not harness.tally.failures else 1


if __name__ == "__main__":
    sys.exit(main())
