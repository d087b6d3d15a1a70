"""What curation is worth: training on chosen tasks, against a fixed task set of the generator's full distribution.

    python -m benchmarks.curation_study --state study.json --plots docs/images [--seeds 0 1 2] [--json figures.json]

All arms begin with the same base policy and the same first version, drawn from the full distribution; all are
evaluated on the same held-out tasks, of that distribution too.

| arm | refreshed | sampled |
|---|---|---|
| fixed | | |
| refreshed | x | |
| sampled | | x |
| curated | x | x |

Refreshed: a refresh every `--refresh-every` steps, beside the training, proposes tasks at the levels that are useful
by the run's last steps, measures some with probe groups, and publishes a version, which the run takes up. Sampled:
groups play tasks of the levels that the last steps solved at times; otherwise they go by the pools of the version.

Each arm is a whole run: a real vLLM engine that stays warm over all of them, DeepSpeed in its own process, a real
SeaweedFS between them. Held-out success is measured of every `--evaluate-every`th version, when the run is over.
Tokens are the engine's own count, those of probe groups among them, those of the evaluations not.

An arm's result is written to `--state` as soon as it is there, and an arm that is in it is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.curation_table import plot, summarise, table
from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.state import State, add_state_option, open_state
from benchmarks.warm_runs import ENGINE_CPU, TRAINER_CPU, WarmRuns, warm_runs
from driftline.environment import GradedFamily, Task, TaskFamily, resolve
from driftline.errors import DriftlineError
from driftline.params import RunParameters
from driftline.records import StepRecord
from driftline.refresh.proposing import window_seed
from driftline.rollout.bootstrap import Surroundings
from driftline.store import tasksets
from driftline.store.probes import ProbeRequest
from driftline.tracking import metrics
from tasks.refresh import Proposal, training_seed
from tasks.refresh_plan import RefreshParameters, pinned_plan
from tasks.refresh_stages import HELD_OUT_SEED
from tasks.refreshing import carry_out

log = logging.getLogger("curation-study")

ENVIRONMENT = "pointer_chase/v1"
ARMS: Mapping[str, tuple[bool, bool]] = {
    "fixed": (False, False),
    "refreshed": (True, False),
    "sampled": (False, True),
    "curated": (True, True),
}
"""Arm -> whether its task set is refreshed, and whether its tasks are sampled by what is learned from them."""
GROUP_SIZE = 8
TRAIN_TASKS = 1024
HELD_OUT_TASKS = 256
ARM_DEADLINE_S = 3600.0
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Choice:
    """What holds for all arms."""

    steps: int
    distribution: str
    """`levels`: all levels alike; `generator`: the family's own mixture."""
    learning_rate: float
    groups_a_step: int
    """A batch, and the lead of another."""
    refresh_every: int
    """Steps between two refreshes."""
    probe_tasks: int
    probe_members: int
    proposals: int
    evaluate_every: int
    """Steps between two policy versions that are evaluated."""
    warm_start_steps: int
    """Of the base policy, which both arms share."""


def parameters(arm: str, seed: int, choice: Choice) -> RunParameters:
    """The run of an arm."""
    refreshed, sampled = ARMS[arm]
    return RunParameters.model_validate(
        {
            "seed": seed,
            "model": {"warm_start_steps": choice.warm_start_steps},
            "environment": {
                "id": ENVIRONMENT, "task_set": f"curation-{arm}-s{seed}", "train_tasks": TRAIN_TASKS,
                "held_out_tasks": HELD_OUT_TASKS, "follow_task_set": refreshed,
                "task_sampling": "learnability" if sampled else "pools",
            },
            "rollout": {"groups_per_step": choice.groups_a_step, "group_size": GROUP_SIZE},
            "overlap": {"lead_groups": choice.groups_a_step},
            "engine": {"cpus": (ENGINE_CPU,)},
            "training": {"steps": choice.steps, "cpus": (TRAINER_CPU,), "learning_rate": choice.learning_rate},
            "tracking": {"traces_every_steps": 0},
        }
    )  # fmt: skip


def options(choice: Choice) -> RefreshParameters:
    """How the curated arm's versions are made."""
    return RefreshParameters.model_validate(
        {
            "proposals": choice.proposals,
            "recent_steps": choice.refresh_every,
            "probe_tasks": choice.probe_tasks,
            "probe_members": choice.probe_members,
            "measure_deadline_s": 120.0,
            "weights": {"useful": 0.8, "unmeasured": 0.1, "too_hard": 0.05, "too_easy": 0.05},
        }
    )


def full_distribution(family: TaskFamily, distribution: str, seed: int, count: int) -> list[Task]:
    """`count` distinct tasks of the generator's full distribution."""
    if distribution == "generator":
        return family.generate(seed, count)
    assert isinstance(family, GradedFamily)
    levels = family.levels
    each = [count // levels + (level < count % levels) for level in range(levels)]
    drawn = (
        family.generate_level(level, window_seed(family.id, seed, level, 0), each[level]) for level in range(levels)
    )
    return list(chain.from_iterable(drawn))


def first_version(family: TaskFamily, seed: int, choice: Choice) -> Proposal:
    """What both arms begin with, and are judged by."""
    held_out = full_distribution(family, choice.distribution, HELD_OUT_SEED, HELD_OUT_TASKS)
    taken = {task.id for task in held_out}
    drawn = full_distribution(family, choice.distribution, training_seed(family.id, seed), TRAIN_TASKS)
    return Proposal(family.id, tuple(task for task in drawn if task.id not in taken), tuple(held_out), seed)


async def run_arm(runs: WarmRuns, arm: str, seed: int, choice: Choice) -> dict[str, Any]:
    """Run an arm to its end, and evaluate its versions."""
    family = resolve(ENVIRONMENT)
    proposal = first_version(family, seed, choice)
    found = await runs.begin(parameters(arm, seed, choice), f"{arm}-s{seed}", proposal=proposal)
    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(keep_refreshing(family, found, seed, choice))] if ARMS[arm][0] else []
        await runs.finish(found, deadline_s=ARM_DEADLINE_S)
        for task in beside:
            task.cancel()
    versions = sorted({*range(0, choice.steps + 1, choice.evaluate_every), choice.steps})
    held_out = await runs.held_out_success(found, versions)
    records = await asyncio.to_thread(found.run_store.steps)
    taken_up = (await asyncio.to_thread(found.run_store.read_head))[0].task_sets
    return figures_of(arm, seed, records, held_out) | {"versions": [list(pair) for pair in taken_up]}


async def keep_refreshing(family: TaskFamily, found: Surroundings, seed: int, choice: Choice) -> None:
    """Refresh the run's task set every so many steps, until it is cancelled; one that fails waits for the next."""
    run_store, environment = found.run_store, found.parameters.environment
    after = choice.refresh_every
    while True:
        head, _ = await asyncio.to_thread(run_store.read_head)
        if head.step < after:
            await asyncio.sleep(LOOK_S)
            continue
        began, after = time.monotonic(), head.step + choice.refresh_every
        plan = await asyncio.to_thread(
            pinned_plan, run_store.store, family, environment.task_set, seed=1000 * seed + head.step,
            size=environment.train_tasks, held_out_tasks=HELD_OUT_TASKS, options=options(choice), run=run_store.run,
        )  # fmt: skip
        try:
            published = await carry_out(run_store.store, family, plan, _leave)
        except DriftlineError:
            log.exception("step %d: no version", head.step)
            continue
        manifest = await asyncio.to_thread(tasksets.manifest, run_store.store, published.name, published.version)
        log.info(
            "step %d: version %s in %.1f s, pools %s, levels %s",
            head.step, published.version, time.monotonic() - began, dict(manifest.pools), plan.levels,
        )  # fmt: skip


async def _leave(request: ProbeRequest) -> None:
    """The run has ended: what its cells have not played stays unmeasured."""


def figures_of(arm: str, seed: int, records: Sequence[StepRecord], held_out: dict[int, float]) -> dict[str, Any]:
    """What an arm came to; `curve` has one entry a step, `held_out` one an evaluated version."""
    ledgers = [record.ledger for record in records]
    generated = [0, *(ledger.generated if ledger is not None else 0 for ledger in ledgers)]
    probe = [0, *(ledger.probe if ledger is not None else 0 for ledger in ledgers)]
    return {
        "arm": arm,
        "seed": seed,
        "steps": len(records),
        "wall_clock_s": records[-1].times.committed - records[0].times.previous_commit,
        "tokens": generated[-1],
        "probe_tokens": probe[-1],
        "zero_variance_share": sum(use.weight == 0 for record in records for use in record.groups)
        / sum(len(record.groups) for record in records),
        "held_out": [
            {"step": step, "success": success, "tokens": generated[step]}
            for step, success in sorted(held_out.items())
        ],
        "curve": [
            {
                "success": record.metrics[metrics.SUCCESS_MEAN],
                "zero_variance_share": sum(use.weight == 0 for use in record.groups) / len(record.groups),
                "tokens": tokens,
                "effective_strata": record.metrics[metrics.EFFECTIVE_STRATA],
                "newest_version_share": record.metrics[metrics.TASK_SET_SHARE],
                "version_number": record.metrics[metrics.TASK_SET_NUMBER],
                "k3_nats": record.metrics[metrics.K3],
            }
            for record, tokens in zip(records, generated[1:], strict=True)
        ],
    }


async def carry_out_arms(state: State, arms: Sequence[str], seeds: Sequence[int], choice: Choice) -> None:
    """Run what is not done yet, one seed after the other."""
    missing = state.missing(arms, seeds)
    if not missing:
        return
    async with warm_runs(parameters("fixed", 0, choice).engine) as runs:
        await state.add(missing, lambda arm, seed: run_arm(runs, arm, seed, choice))


def main() -> None:
    """Run the arms that lack, print the table, draw the plots."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=["fixed", "curated"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--distribution", choices=("levels", "generator"), default="levels")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--groups-a-step", type=int, default=16, help="groups in a batch, and in the lead")
    parser.add_argument("--refresh-every", type=int, default=4, help="steps between two refreshes")
    parser.add_argument("--probe-tasks", type=int, default=16, help="most tasks that probe groups measure a refresh")
    parser.add_argument("--probe-members", type=int, default=4, help="episodes of a probe group")
    parser.add_argument("--proposals", type=int, default=512, help="tasks proposed a refresh")
    parser.add_argument("--evaluate-every", type=int, default=2, help="steps between two evaluated versions")
    parser.add_argument("--warm-start-steps", type=int, default=400)
    add_state_option(parser, "curation-study.json")
    parser.add_argument("--plots", type=Path, default=None, help="directory for the plots")
    add_json_option(parser)
    given = parser.parse_args()
    choice = Choice(**{name: getattr(given, name) for name in Choice.__dataclass_fields__})
    state = open_state(parser, given.state, {"choice": asdict(choice)}, "results")
    asyncio.run(carry_out_arms(state, given.arms, given.seeds, choice))
    results = list(state.results.values())
    rows = summarise(results)
    print(table(rows))
    write({"choice": asdict(choice), "targets": rows, "results": results}, given.json)
    if given.plots is not None:
        plot(results, given.plots)


if __name__ == "__main__":
    main()
