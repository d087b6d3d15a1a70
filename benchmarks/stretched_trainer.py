# pyright: basic
"""The trainer's process, with steps that take at least a given time: `--run R --step-s S`.

Stands for a larger model: what comes of it is the real trainer's.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from driftline.process import child_main
from driftline.training.entry import train


def stretched(run: str, step_s: float) -> None:
    """Be the run's trainer."""
    from driftline.training.lean_imports import import_transformers

    import_transformers()
    from driftline.training.ranks import TrainerGroup

    step = TrainerGroup.train

    def patient(self: TrainerGroup, batch: Any) -> Any:
        until = time.monotonic() + step_s
        outcome = step(self, batch)
        time.sleep(max(0.0, until - time.monotonic()))
        return outcome

    TrainerGroup.train = patient  # type: ignore[method-assign]
    train(run)


def main() -> None:
    """Parse the command line and run as a supervised child."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--step-s", type=float, required=True)
    given = parser.parse_args()
    child_main(partial(stretched, given.run, given.step_s))


if __name__ == "__main__":
    main()
