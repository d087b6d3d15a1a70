"""What stale rollouts cost, and what is done about it: the same training at several leads, corrected in several ways.

    python -m benchmarks.staleness_study --state study.json --plots docs/images [--seeds 0 1 2] [--json figures.json]

Each arm is a whole run: a real vLLM engine that stays warm over all of them, DeepSpeed in its own process, a real
SeaweedFS between them. Engine and trainer have a processor each. A step of the trainer is stretched to `--step-s`
seconds, so that training bounds the run and a lead is really used: with a model this small generation would.

An arm's result is written to `--state` as soon as it is there, and an arm that is in it is not run again. Seconds
compare only within one seed, whose arms run one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.local_run import WarmEngine, begin, host_engine, play, train
from benchmarks.staleness_table import plot, summarise, table
from driftline.params import AdmissionParameters, RunParameters, Settings, settings
from driftline.records import StepRecord
from driftline.rollout.bootstrap import read_run
from driftline.rollout.evaluate import evaluate
from driftline.store.protocol import ObjectStore
from driftline.tracking import metrics
from driftline.tracking.sink import NullSink
from tests.support.seaweed import Seaweed, running_seaweed

log = logging.getLogger("staleness-study")

STEPS = 40
STEPS_A_BATCH_OF_LEAD = 8
LEADS = (0, 1, 4, 16)
GROUPS_A_STEP = 8
GROUP_SIZE = 8
PROCESSORS = (0, 1)
"""Of the engine, and of the trainer."""
ARM_DEADLINE_S = 2400.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of training."""

    correction: str
    """`none`, `truncated`, `admission` or `controller`."""
    lead_batches: int
    """Where it begins, for the controller."""

    @property
    def name(self) -> str:
        """Unique among the arms."""
        return self.correction if self.correction == "controller" else f"{self.correction}-{self.lead_batches}"

    @property
    def steps(self) -> int:
        """At least eight for each batch of lead."""
        return max(STEPS, STEPS_A_BATCH_OF_LEAD * self.lead_batches)


def arms() -> list[Arm]:
    """All of them; at lead 0 there is nothing to correct."""
    return [
        Arm("none", 0),
        *(Arm(correction, lead) for lead in LEADS[1:] for correction in ("none", "truncated", "admission")),
        Arm("controller", 1),
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """What holds for all arms."""

    learning_rate: float
    budget_k3_nats: float
    """Of the controller; the limits of admission are the defaults."""
    step_s: float
    """Least seconds that the trainer's part of a step takes."""


def parameters(arm: Arm, seed: int, choice: Choice) -> RunParameters:
    """The run of an arm."""
    lead_groups = arm.lead_batches * GROUPS_A_STEP
    overlap: dict[str, Any] = {"lead_groups": lead_groups, "max_lag_versions": 2 * max(LEADS)}
    if arm.correction == "controller":
        overlap |= {"controller": "divergence", "budget_k3_nats": choice.budget_k3_nats}
        overlap |= {"highest_groups": max(LEADS) * GROUPS_A_STEP}
    admits = arm.correction in ("admission", "controller")
    return RunParameters.model_validate(
        {
            "seed": seed,
            "rollout": {
                "groups_per_step": GROUPS_A_STEP, "group_size": GROUP_SIZE,
                "episodes_in_flight": 4 * GROUPS_A_STEP * GROUP_SIZE,
            },
            "overlap": overlap,
            "admission": {} if admits else dict.fromkeys(AdmissionParameters.model_fields),
            "engine": {"cpus": PROCESSORS[:1]},
            "training": {
                "steps": arm.steps, "cpus": PROCESSORS[1:], "learning_rate": choice.learning_rate,
                "importance": "none" if arm.correction == "none" else "token_truncated",
            },
            "tracking": {"traces_every_steps": 0},
        }
    )  # fmt: skip


class Study:
    """Runs arms on one warm engine."""

    def __init__(self, seaweed: Seaweed, folder: Path, choice: Choice) -> None:
        self._store: ObjectStore = seaweed.store(180.0)
        self._settings: Settings = settings()
        self._folder = folder
        self._choice = choice
        self._engine = WarmEngine()

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()

    async def run(self, arm: Arm, seed: int, name: str) -> dict[str, Any]:
        """Run an arm to its end, and evaluate its policy."""
        params = parameters(arm, seed, self._choice)
        await begin(params, name, self._store, self._folder)
        found = await asyncio.to_thread(read_run, name, self._settings)
        engine = await self._engine.serving(found)
        trainer = ["benchmarks.stretched_trainer", "--step-s", str(self._choice.step_s)]
        async with asyncio.timeout(ARM_DEADLINE_S), asyncio.TaskGroup() as group:
            group.create_task(train(name, self._folder, PROCESSORS[1], *trainer))
            group.create_task(play(found, engine))
        versions = [0, arm.steps] if arm.correction == "none" and arm.lead_batches == 0 else [arm.steps]
        results = await evaluate(found, engine, NullSink(), versions)
        success = {result.version: result.success for result in results}
        records = await asyncio.to_thread(found.run_store.steps)
        return figures_of(arm, seed, records) | {"success": success[arm.steps], "success_base": success.get(0)}


def figures_of(arm: Arm, seed: int, records: Sequence[StepRecord]) -> dict[str, Any]:
    """What the step records say of an arm; `curve` has one entry a step."""
    groups = GROUPS_A_STEP

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    groups_trained = [group for record in records for group in record.groups if group.weight > 0]
    trained = [use for group in groups_trained for use in group.uses if use.counted]
    tokens = sum(use.sampled_tokens for use in trained)
    dropped = sum(use.sampled_tokens for use in trained if use.weight == 0)
    given_up = sum(one.sampled_tokens for record in records for one in record.give_ups)
    return {
        "arm": arm.name,
        "seed": seed,
        **asdict(arm),
        "steps": len(records),
        "wall_clock_s": records[-1].times.committed - records[0].times.previous_commit,
        "step_s": (records[-1].times.committed - records[0].times.committed) / (len(records) - 1),
        "effective_lead_batches": mean([record.metrics[metrics.LAG_STEPS_MEAN] for record in records]),
        "lead_batches_mean": mean([record.lead_groups / groups for record in records]),
        "k3_nats": mean([record.metrics[metrics.K3] for record in records]),
        "ess_fraction": mean([record.metrics[metrics.ESS_FRACTION] for record in records]),
        "dropped_share": (dropped + given_up) / max(1, tokens + given_up),
        "admission_s": mean([record.metrics[metrics.ADMISSION_SECONDS] for record in records]),
        "admission_forward_s": mean([record.metrics[metrics.ADMISSION_SCORE_SECONDS] for record in records]),
        "steering_s": mean([record.metrics[metrics.STEERING_SECONDS] for record in records]),
        "steering_share": steering_share(records),
        "reward_last": mean([record.metrics[metrics.REWARD_MEAN] for record in records[-5:]]),
        "curve": [
            {
                "seconds": record.times.committed - records[0].times.previous_commit,
                "success": record.metrics[metrics.SUCCESS_MEAN],
                "k3_nats": record.metrics[metrics.K3],
                "lag": record.metrics[metrics.LAG_STEPS_MEAN],
                "lead_groups": record.lead_groups,
            }
            for record in records
        ],
    }


def steering_share(records: Sequence[StepRecord]) -> float:
    """Share of the steps' wall clock that divergence, admission, controller, diagnosis and ledger took.

    Forward passes that score waiting groups are aside. At most: some of it is done while the trainer would wait.
    """
    seconds = sum(record.times.committed - record.times.previous_commit for record in records)
    return sum(record.metrics[metrics.STEERING_SECONDS] for record in records) / seconds


async def carry_out(given: argparse.Namespace, done: dict[str, Any]) -> None:
    """Run what is not done yet, one seed after the other."""
    choice = Choice(given.learning_rate, given.budget_k3, given.step_s)
    state: Path = given.state
    wanted = [(seed, arm) for seed in given.seeds for arm in arms() if not given.arms or arm.name in given.arms]
    left = [(seed, arm) for seed, arm in wanted if f"{arm.name}/{seed}" not in done["results"]]
    with tempfile.TemporaryDirectory(prefix="driftline-study-") as name, running_seaweed(Path(name)) as seaweed:
        folder = Path(name)
        host_engine(parameters(Arm("none", 0), 0, choice).engine, seaweed, folder)
        study = Study(seaweed, folder, choice)
        try:
            for number, (seed, arm) in enumerate(left):
                began = time.monotonic()
                found = await study.run(arm, seed, f"{arm.name}-s{seed}-{number}")
                done["results"][f"{arm.name}/{seed}"] = found
                write(done, state)
                shown = {key: value for key, value in found.items() if key != "curve"}
                log.info("%s, seed %d (%.0f s): %s", arm.name, seed, time.monotonic() - began, shown)
        finally:
            await study.close()


def main() -> None:
    """Run the arms that lack, print the table, draw the plots."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=[], help="names of arms, such as admission-4; all without")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--budget-k3", type=float, default=0.01, help="nats a token, of the controller")
    parser.add_argument("--step-s", type=float, default=2.2, help="least seconds of the trainer's part of a step")
    parser.add_argument("--state", type=Path, default=Path("staleness-study.json"), help="results so far")
    parser.add_argument("--plots", type=Path, default=None, help="directory for the plots")
    add_json_option(parser)
    given = parser.parse_args()
    chosen = {name: getattr(given, name) for name in ("learning_rate", "budget_k3", "step_s")}
    done: dict[str, Any] = {"choice": chosen, "results": {}}
    if given.state.exists():
        done = json.loads(given.state.read_text())
        if done["choice"] != chosen:
            parser.error(f"{given.state} holds results with {done['choice']}: choose the same, or another file")
    asyncio.run(carry_out(given, done))
    rows = summarise(list(done["results"].values()))
    print(table(rows))
    write({"choice": chosen, "arms": rows}, given.json)
    if given.plots is not None:
        plot(list(done["results"].values()), given.plots)


if __name__ == "__main__":
    main()
