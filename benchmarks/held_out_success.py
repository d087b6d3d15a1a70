"""What the demonstration learns: `post-training/local` for several seeds, one after the other.

    driftline up && eval "$(driftline env)"
    python -m benchmarks.held_out_success --seeds 0 1 2 --json success.json

Success is that of 256 held-out tasks, before and after. Wall clock, divergence and lag stand beside it; seconds of
this table are of one machine at one time, and compare with nothing but each other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.figures import add_json_option, cell, markdown_table, write
from driftline.params import settings
from driftline.store.client import open_store
from driftline.tracking.report import build_report, to_dict

DEPLOYMENT = "post-training/local"
COLUMNS = (
    ("seed", "seed"),
    ("base", "held_out_success_base"),
    ("final", "held_out_success_final"),
    ("steps", "steps"),
    ("run s", "seconds"),
    ("steps s", "wall_clock_s"),
    ("overlap efficiency", "overlap_efficiency"),
    ("overhead s", "pipeline_overhead_s"),
    ("k3 nats", "k3_nats"),
    ("ESS", "ess_fraction"),
    ("lag", "lag_steps"),
    ("pause s", "engine_pause_s"),
)


def run_seed(seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Run the deployment once and return its report, with the seed and the seconds of the whole flow run."""
    began = time.monotonic()
    parameters = json.dumps({**changes, "seed": seed})
    command = ["prefect", "deployment", "run", DEPLOYMENT, "--watch", "--param", f"params={parameters}"]
    ended = subprocess.run([sys.executable, "-m", *command], check=False)
    if ended.returncode:
        raise SystemExit(f"seed {seed}: {DEPLOYMENT} did not complete; the Prefect page says why")
    seconds = time.monotonic() - began
    chosen = settings()
    report = build_report(open_store(chosen), "latest", bucket=chosen.bucket)
    return {"seed": seed, "seconds": seconds, **to_dict(report)}


def table(results: list[dict[str, Any]]) -> str:
    """The results as a Markdown table; of a distribution, its median or mean."""
    return markdown_table(COLUMNS, results, _cell)


def _cell(value: Any) -> str:
    return cell(value.get("p50", value.get("mean")) if isinstance(value, dict) else value)


def main() -> None:
    """Run the seeds, print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--params", type=json.loads, default={}, help="changed parameters of the runs, as JSON")
    add_json_option(parser)
    given = parser.parse_args()
    results = [run_seed(seed, given.params) for seed in given.seeds]
    sys.stdout.write(table(results) + "\n")
    write(results, given.json)


if __name__ == "__main__":
    main()
