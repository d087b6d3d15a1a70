"""Is a planted fault named, and is a healthy run left alone?

    python -m benchmarks.planted_faults [--runs 20] [--json PATH] [--faults healthy lag-16 ...]

Each run is short, with a policy and seeds of its own: the real training loop and trainer on what a real vLLM engine
samples (`tests/support/engine_and_trainer.py`), at the default limits. A fault counts as named if the last step's
diagnosis names its cause and no step names another fault; a healthy run if every step is called healthy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from driftline.divergence.diagnosis import CAUSES
from driftline.measured import Cause
from driftline.records import StepRecord
from driftline.tracking import metrics
from tests.support.engine_and_trainer import HEALTHY, Fault, Laboratory, laboratory, one_rank, run_parameters
from tests.support.seaweed import running_seaweed

STEPS = 6
LEAD = 16


@dataclass(frozen=True)
class Case:
    """A fault, the cause to be named, and how long a run it takes to show."""

    fault: Fault
    cause: Cause
    steps: int = STEPS
    temperature: float = 1.0
    learning_rate: float = 3e-4


CASES = {
    "healthy": Case(HEALTHY, "healthy"),
    "stuck-engine": Case(Fault(stuck_cell="c1"), "failed weight sync"),
    "temperature": Case(Fault(engine_temperature=0.9), "engine mismatch"),
    "bf16-engine": Case(Fault(engine_dtype="bfloat16"), "engine mismatch"),
    "lag-16": Case(Fault(lead_batches=LEAD), "staleness", steps=LEAD + 4),
    "retokenised": Case(Fault(retokenised=True), "engine mismatch"),
}
CONTROLS = {
    "null-update": Case(HEALTHY, "healthy", steps=20, learning_rate=0.0),
    "in-flight": Case(Fault(in_flight=True), "healthy"),
    "synchronous": Case(Fault(lead_batches=0), "healthy", temperature=0.7),
}
"""Healthy runs: nothing is learnt, or everything is of lag 0, and so divergence must stay at its floor; or every
update meets requests in flight, which must not look like a floor."""
KNOWN = CASES | CONTROLS


def named(case: Case, records: Sequence[StepRecord]) -> bool:
    """Whether the cause was named, and nothing else."""
    found = [record.diagnosis.cause for record in records if record.diagnosis]
    return found[-1] == case.cause and set(found) <= {"healthy", case.cause}


async def measure(lab: Laboratory, name: str, case: Case, runs: int, first_seed: int) -> list[dict[str, Any]]:
    """Some runs of a case."""
    rows: list[dict[str, Any]] = []
    for seed in range(first_seed, first_seed + runs):
        begin = time.monotonic()
        params = run_parameters(
            case.fault,
            case.steps,
            training={"learning_rate": case.learning_rate},
            rollout={"temperature": case.temperature},
        )
        records = await lab.run(f"{name}-{seed}", params, case.fault, seed)
        last = records[-1].diagnosis
        assert last is not None
        rows.append(
            {
                "case": name,
                "seed": seed,
                "expected": case.cause,
                "verdicts": [record.diagnosis.cause for record in records if record.diagnosis],
                "named": named(case, records),
                "engine": last.engine,
                "why": last.why,
                "figures": dict(last.figures),
                "k3_by_lag": {lag: found.k3 for lag, found in records[-1].by_lag.items()},
                "lag0_k3_max_nats": max(
                    (record.by_lag[0].k3 for record in records if 0 in record.by_lag), default=None
                ),
                "k3_max_nats": max(record.metrics[metrics.K3] for record in records),
                "difference_max_nats": max(record.metrics[metrics.LOGPROB_DIFFERENCE_MAX] for record in records),
                "step_s": statistics.median(record.metrics[metrics.STEP_SECONDS] for record in records),
                "seconds": time.monotonic() - begin,
            }
        )
        print(f"{name} {seed}: {'->'.join(dict.fromkeys(rows[-1]['verdicts']))}: {last.why}", flush=True)
    return rows


async def measure_all(names: Sequence[str], runs: int, first_seed: int) -> list[dict[str, Any]]:
    """All cases, with one engine after the other."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, running_seaweed(Path(folder)) as seaweed, one_rank():
        for dtype in ("float32", "bfloat16"):
            chosen = [name for name in names if KNOWN[name].fault.engine_dtype == dtype]
            if not chosen:
                continue
            place = Path(folder) / dtype
            place.mkdir()
            async with laboratory(seaweed, place, dtype) as lab:
                for name in chosen:
                    rows += await measure(lab, name, KNOWN[name], runs, first_seed)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Which cause was named how often, by case, with the figures that tell them apart."""
    columns = [*CAUSES, "named", "floor k3", "k3", "probe", "run s"]
    lines = ["| case | " + " | ".join(columns) + " |", "|" + " --- |" * (len(columns) + 1)]
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        counts = Counter(row["verdicts"][-1] for row in own)
        figures = [_range(own, figure) for figure in ("floor_k3_nats", "k3_nats", "probe_difference_max_nats")]
        seconds = statistics.median(row["seconds"] for row in own)
        good = f"{sum(row['named'] for row in own)} of {len(own)}"
        cells = [*(str(counts[cause]) for cause in CAUSES), good, *figures, f"{seconds:.1f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _range(rows: Sequence[dict[str, Any]], figure: str) -> str:
    values = [row["figures"][figure] for row in rows if figure in row["figures"]]
    return f"{min(values):.1e} .. {max(values):.1e}" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each case")
    parser.add_argument("--faults", nargs="+", choices=[*KNOWN], default=[*CASES], help="which cases")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the results go; those of other cases in it are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = asyncio.run(measure_all(arguments.faults, arguments.runs, arguments.first_seed))
    if arguments.json and arguments.json.exists():
        others = json.loads(arguments.json.read_text())["runs"]
        rows = [row for row in others if row["case"] not in arguments.faults] + rows
    result = {"runs": rows, "named": sum(row["named"] for row in rows), "of": len(rows)}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))
    wrong = [f"{row['case']}-{row['seed']}" for row in rows if not row["named"]]
    print(json.dumps({"named": result["named"], "of": result["of"], "wrong": wrong}))


if __name__ == "__main__":
    main()
