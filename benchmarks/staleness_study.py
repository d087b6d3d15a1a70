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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.staleness_table import plot, summarise, table
from benchmarks.state import State, add_state_option, open_state
from benchmarks.warm_runs import ENGINE_CPU, TRAINER_CPU, WarmRuns, warm_runs
from driftline.params import AdmissionParameters, RunParameters
from driftline.records import StepRecord
from driftline.tracking import metrics

STEPS = 40
STEPS_A_BATCH_OF_LEAD = 8
LEADS = (0, 1, 4, 16)
GROUPS_A_STEP = 8
GROUP_SIZE = 8
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


SYNCHRONOUS = Arm("none", 0)


def arms() -> list[Arm]:
    """All of them; at lead 0 there is nothing to correct."""
    return [
        SYNCHRONOUS,
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
            "engine": {"cpus": (ENGINE_CPU,)},
            "training": {
                "steps": arm.steps, "cpus": (TRAINER_CPU,), "learning_rate": choice.learning_rate,
                "importance": "none" if arm.correction == "none" else "token_truncated",
            },
            "tracking": {"traces_every_steps": 0},
        }
    )  # fmt: skip


async def run_arm(runs: WarmRuns, arm: Arm, seed: int, choice: Choice) -> dict[str, Any]:
    """Run an arm to its end, and evaluate its policy; of the synchronous arm, the base policy as well."""
    found = await runs.begin(parameters(arm, seed, choice), f"{arm.name}-s{seed}")
    trainer = ["benchmarks.stretched_trainer", "--step-s", str(choice.step_s)]
    await runs.finish(found, trainer, deadline_s=ARM_DEADLINE_S)
    versions = [0, arm.steps] if arm == SYNCHRONOUS else [arm.steps]
    success = await runs.held_out_success(found, versions)
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


async def carry_out(state: State, names: Sequence[str], seeds: Sequence[int], choice: Choice) -> None:
    """Run what is not done yet, one seed after the other."""
    by_name = {arm.name: arm for arm in arms() if arm.name in names}
    missing = state.missing(by_name, seeds)
    if not missing:
        return
    async with warm_runs(parameters(SYNCHRONOUS, 0, choice).engine) as runs:
        await state.add(missing, lambda name, seed: run_arm(runs, by_name[name], seed, choice))


def main() -> None:
    """Run the arms that lack, print the table, draw the plots."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    names = [arm.name for arm in arms()]
    parser.add_argument(
        "--arms", nargs="+", default=[], choices=names, metavar="ARM", help="such as admission-4; all without"
    )
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--budget-k3", type=float, default=0.01, help="nats a token, of the controller")
    parser.add_argument("--step-s", type=float, default=2.2, help="least seconds of the trainer's part of a step")
    add_state_option(parser, "staleness-study.json")
    parser.add_argument("--plots", type=Path, default=None, help="directory for the plots")
    add_json_option(parser)
    given = parser.parse_args()
    chosen = {name: getattr(given, name) for name in ("learning_rate", "budget_k3", "step_s")}
    state = open_state(parser, given.state, {"choice": chosen}, "results")
    choice = Choice(given.learning_rate, given.budget_k3, given.step_s)
    asyncio.run(carry_out(state, given.arms or names, given.seeds, choice))
    results = list(state.results.values())
    rows = summarise(results)
    print(table(rows))
    write({"choice": chosen, "arms": rows}, given.json)
    if given.plots is not None:
        plot(results, given.plots)


if __name__ == "__main__":
    main()
