"""Driver of the fencing tests: `python -m tests.support.trainer_process RUN [train|removal]`.

A trainer loop over a real store, with a trainer group of one weight; it begins when told by a line on stdin. With a
second argument it stops itself, as if by SIGSTOP from outside: in the middle of its second step, or when it is about
to delete its first old checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from driftline.errors import DriftlineError
from driftline.params import RunParameters, settings
from driftline.store.client import open_store
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink
from driftline.training.batch import TrainingBatch
from driftline.training.loop import TrainingLoop
from driftline.training.protocol import StepOutcome
from tests.support.training import FakeGroup


def tell(event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def stop() -> None:
    tell({"event": "stopped"})
    os.kill(os.getpid(), signal.SIGSTOP)
    # Another thread may take the signal, and this one go on for a moment.
    time.sleep(0.5)


class StoppingGroup(FakeGroup):
    def train(self, batch: TrainingBatch) -> StepOutcome:
        if len(self.batches) == 1:
            stop()
        return super().train(batch)


class StoppingLoop(TrainingLoop):
    def _remove_checkpoint(self, key: str) -> None:
        stop()
        super()._remove_checkpoint(key)


def main(run: str, where: str = "") -> int:
    sys.stdin.readline()
    runs = RunStore(open_store(settings()), run)
    params = RunParameters.model_validate(runs.describe().parameters)
    group = StoppingGroup() if where == "train" else FakeGroup()
    make = StoppingLoop if where == "removal" else TrainingLoop
    scratch = Path(tempfile.mkdtemp())
    try:
        make(runs, runs.take_epoch(), params, group, NullSink(), scratch=scratch, emit=tell).run()
    except DriftlineError as error:
        tell({"event": "error", "type": type(error).__name__, "message": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
