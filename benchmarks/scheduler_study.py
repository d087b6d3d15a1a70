"""Whether scheduling changes what is learned: the same training behind a barrier, and with every technique at once.

    python -m benchmarks.scheduler_study --state study.json [--seeds 0 1 2] [--steps 40] [--json figures.json]

`barrier` is the ladder's arm (b) with a trainer behind it: a batch is collected to its end, then trained on, groups
in the order of their numbers. `scheduled` has a batch of lead, longest episodes first, adaptive concurrency and
surplus members. Both play `pointer_chase` whose reads take 20 ms (lognormal), so that episodes overtake each other.
One warm vLLM engine plays all arms; DeepSpeed trains in its own process.

`length_bias` is sampled tokens of a trained member over those of a generated one, less one. An arm that is in
`--state` is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.against_trl_driftline import GROUP_SIZE, GROUPS, WAITING
from benchmarks.figures import add_json_option, log_progress, markdown_table, write
from benchmarks.state import State, add_state_option, open_state
from benchmarks.warm_runs import ENGINE_CPU, TRAINER_CPU, WarmRuns, warm_runs
from driftline.params import RunParameters
from driftline.records import StepRecord
from driftline.tracking import metrics
from driftline.tracking.bias import find_bias

ARMS: Mapping[str, Mapping[str, Any]] = {
    "barrier": {
        "overlap": {"lead_groups": 0},
        "scheduling": {"order": "number"},
        "rollout": {"concurrency": "fixed", "surplus_members": 0},
    },
    "scheduled": {
        "overlap": {"lead_groups": GROUPS},
        "scheduling": {"order": "predicted"},
        "rollout": {"concurrency": "adaptive", "surplus_members": 2},
    },
}
ARM_DEADLINE_S = 1800.0


def parameters(arm: str, seed: int, steps: int) -> RunParameters:
    """The run of an arm."""
    chosen = ARMS[arm]
    sizes = {"groups_per_step": GROUPS, "group_size": GROUP_SIZE, "episodes_in_flight": 2 * GROUPS * GROUP_SIZE}
    return RunParameters.model_validate(
        {
            **chosen,
            "seed": seed,
            "environment": {"id": WAITING},
            "rollout": sizes | chosen["rollout"],
            "engine": {"cpus": (ENGINE_CPU,)},
            "training": {"steps": steps, "cpus": (TRAINER_CPU,)},
            "tracking": {"traces_every_steps": 0},
        }
    )


async def run_arm(runs: WarmRuns, arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Run an arm to its end, and evaluate its last policy."""
    # Its demonstrations are of the game without waits.
    model = await runs.base_model(RunParameters(seed=seed))
    found = await runs.begin(parameters(arm, seed, steps), f"{arm}-s{seed}", model=model)
    await runs.finish(found, deadline_s=ARM_DEADLINE_S)
    success = await runs.held_out_success(found, [steps])
    return figures_of(arm, seed, await asyncio.to_thread(found.run_store.steps), success[steps])


def figures_of(arm: str, seed: int, records: Sequence[StepRecord], success: float) -> dict[str, Any]:
    """What is kept of an arm; `success` is that of the held-out tasks after the last step."""
    bias = find_bias(records)
    assert bias is not None
    [environment] = bias.by_environment.values()
    tokens = environment["tokens"]
    return {
        "arm": arm,
        "seed": seed,
        "success": success,
        "wall_clock_s": records[-1].times.committed - records[0].times.previous_commit,
        "length_bias": tokens.trained_mean / tokens.generated_mean - 1.0,
        "bias_warnings": bias.warnings,
        "left_out": dict(bias.left_out),
        "lag_mean": statistics.fmean(record.metrics[metrics.LAG_STEPS_MEAN] for record in records),
        "k3_nats": statistics.fmean(record.metrics[metrics.K3] for record in records),
        "reward_last": statistics.fmean(record.metrics[metrics.REWARD_MEAN] for record in records[-5:]),
    }


def summarise(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each seed that has both arms: success of both, their ratio of wall clock, the length bias."""
    by_place = {(one["arm"], one["seed"]): one for one in results}
    rows: list[dict[str, Any]] = []
    for seed in sorted({one["seed"] for one in results}):
        barrier, scheduled = by_place.get(("barrier", seed)), by_place.get(("scheduled", seed))
        if barrier is None or scheduled is None:
            continue
        rows.append(
            {
                "seed": seed,
                "barrier_success": barrier["success"],
                "scheduled_success": scheduled["success"],
                "wall_clock_ratio": scheduled["wall_clock_s"] / barrier["wall_clock_s"],
                "length_bias": scheduled["length_bias"],
                "lag_mean": scheduled["lag_mean"],
                "k3_nats": scheduled["k3_nats"],
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    if not rows:
        return "no seed has both arms"
    return markdown_table(((title, title) for title in rows[0]), rows, "{:.3g}".format)


async def carry_out(state: State, seeds: Sequence[int], steps: int) -> None:
    """Run what is not done yet, one seed after the other."""
    missing = state.missing(ARMS, seeds)
    if not missing:
        return
    async with warm_runs(parameters("barrier", 0, steps).engine) as runs:
        await state.add(missing, lambda arm, seed: run_arm(runs, arm, seed, steps))


def main() -> None:
    """Run the arms that lack, and print the table."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    add_state_option(parser, "scheduler-study.json")
    add_json_option(parser)
    given = parser.parse_args()
    state = open_state(parser, given.state, {"steps": given.steps}, "results")
    asyncio.run(carry_out(state, given.seeds, given.steps))
    results = list(state.results.values())
    rows = summarise(results)
    print(table(rows))
    write({"steps": given.steps, "seeds": rows, "results": results}, given.json)


if __name__ == "__main__":
    main()
