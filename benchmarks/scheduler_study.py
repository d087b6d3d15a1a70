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
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.against_trl_driftline import GROUP_SIZE, GROUPS, WAITING
from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.local_run import WarmEngine, base_model, begin, host_engine, play, train
from driftline.params import RunParameters, settings
from driftline.records import StepRecord
from driftline.rollout.bootstrap import read_run
from driftline.rollout.evaluate import evaluate
from driftline.tracking import metrics
from driftline.tracking.bias import find_bias
from driftline.tracking.sink import NullSink
from tests.support.seaweed import Seaweed, running_seaweed

log = logging.getLogger("scheduler-study")

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
PROCESSORS = (0, 1)
"""Of the engine, and of the trainer."""
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
            "engine": {"cpus": PROCESSORS[:1]},
            "training": {"steps": steps, "cpus": PROCESSORS[1:]},
            "tracking": {"traces_every_steps": 0},
        }
    )


async def run_arm(
    arm: str, seed: int, steps: int, seaweed: Seaweed, folder: Path, warm: WarmEngine
) -> dict[str, Any]:
    """Run an arm to its end, and evaluate its last policy."""
    params, name = parameters(arm, seed, steps), f"{arm}-s{seed}"
    store = seaweed.store(180.0)
    # Its demonstrations are of the game without waits.
    model = await base_model(RunParameters(seed=seed), store, folder)
    await begin(params, name, store, folder, model=model)
    found = await asyncio.to_thread(read_run, name, settings())
    engine = await warm.serving(found)
    async with asyncio.timeout(ARM_DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(train(name, folder, PROCESSORS[1], "driftline.training.entry"))
        group.create_task(play(found, engine))
    [result] = await evaluate(found, engine, NullSink(), [steps])
    return figures_of(arm, seed, await asyncio.to_thread(found.run_store.steps), result.success)


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
    lines = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    lines += ["| " + " | ".join(f"{value:.3g}" for value in row.values()) + " |" for row in rows]
    return "\n".join(lines)


async def carry_out(given: argparse.Namespace, done: dict[str, Any]) -> None:
    """Run what is not done yet, one seed after the other."""
    left = [(seed, arm) for seed in given.seeds for arm in ARMS if f"{arm}/{seed}" not in done["results"]]
    with tempfile.TemporaryDirectory(prefix="driftline-study-") as name, running_seaweed(Path(name)) as seaweed:
        host_engine(parameters("barrier", 0, given.steps).engine, seaweed, Path(name))
        warm = WarmEngine()
        try:
            for seed, arm in left:
                began = time.monotonic()
                found = await run_arm(arm, seed, given.steps, seaweed, Path(name), warm)
                done["results"][f"{arm}/{seed}"] = found
                write(done, given.state)
                log.info("%.0f s: %s", time.monotonic() - began, found)
        finally:
            await warm.close()


def main() -> None:
    """Run the arms that lack, and print the table."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--state", type=Path, default=Path("scheduler-study.json"), help="results so far")
    add_json_option(parser)
    given = parser.parse_args()
    done: dict[str, Any] = {"steps": given.steps, "results": {}}
    if given.state.exists():
        done = json.loads(given.state.read_text())
        if done["steps"] != given.steps:
            parser.error(f"{given.state} holds results of {done['steps']} steps: choose the same, or another file")
    asyncio.run(carry_out(given, done))
    rows = summarise(list(done["results"].values()))
    print(table(rows))
    write({"steps": given.steps, "seeds": rows, "results": list(done["results"].values())}, given.json)


if __name__ == "__main__":
    main()
