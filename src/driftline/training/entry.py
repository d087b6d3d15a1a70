# pyright: basic
"""The trainer's process: `python -m driftline.training.entry --run R`, alone or as one rank of several.

Several ranks find one another by RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them.
Rank 0 talks to the store; the others do what it announces. Events go to stdout, logs to stderr.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, DriftlineError, EpochLost, TransientProcessFailure
from driftline.params import RankSettings, RunParameters, settings
from driftline.process import child_main, emit
from driftline.process.child import TRANSIENT
from driftline.records import RunDescription
from driftline.store import files
from driftline.store.client import open_store
from driftline.store.run_store import RunStore
from driftline.tracking.sink import CLOSE_DEADLINE_S, open_sink
from driftline.training.signing import key_of

if TYPE_CHECKING:
    from driftline.training.ranks import TrainerGroup

log = logging.getLogger(__name__)

INTERRUPTED_S = 3.0
"""How long an interrupted trainer waits for its last metrics; what is left is kept for the next one."""


def train(run: str) -> None:
    """Be one rank of the run's trainer, until the run is over.

    Raises:
        ConfigurationError: The ranks are not those of the run's parameters, or the model is none.
        EpochLost: Another trainer has taken over.
    """
    where, place = settings(), RankSettings()  # pyright: ignore[reportCallIssue]
    run_store = RunStore(open_store(where), run)
    description = run_store.describe()
    params = RunParameters.model_validate(description.parameters)
    if place.world_size != params.training.ranks:
        raise ConfigurationError(
            f"training.ranks is {params.training.ranks}, but {place.world_size} processes were started"
        )
    head, _ = run_store.read_head()
    if head.state != "running":
        log.info("run %s is %s already", run, head.state)
        return
    model_dir = files.local_model(run_store.store, description.model, where.work_dir)
    scratch = (where.work_dir / "trainer" / run).resolve()
    if place.rank == 0:
        shutil.rmtree(scratch, ignore_errors=True)
    _run_rank(run_store, description, params, place, model_dir, scratch)


def _run_rank(
    run_store: RunStore,
    description: RunDescription,
    params: RunParameters,
    place: RankSettings,
    model_dir: Path,
    scratch: Path,
) -> None:
    # torch, transformers and DeepSpeed take seconds to import: what is wrong above is said before.
    from driftline.training.lean_imports import import_transformers

    import_transformers()
    from driftline.training.distributed import join, leave
    from driftline.training.ranks import TrainerGroup, follow
    from driftline.training.trainer import Trainer

    join(place, params.limits.batch_deadline_s)
    trainer = Trainer(params, model_dir)
    if place.rank > 0:
        try:
            follow(trainer, scratch)
        except RuntimeError as error:
            raise TransientProcessFailure(f"rank {place.rank} has lost the others: {error}") from error
        leave()
        return
    group = TrainerGroup(trainer, scratch)
    try:
        _lead(run_store, description, params, group, scratch)
    except DriftlineError:
        group.stop_if_idle()
        raise
    except RuntimeError as error:
        if place.world_size == 1:
            raise
        raise TransientProcessFailure(f"the ranks no longer work together: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    group.stop_if_idle()
    leave()


def _lead(
    run_store: RunStore,
    description: RunDescription,
    params: RunParameters,
    group: TrainerGroup,
    scratch: Path,
) -> None:
    """Rank 0's part; a failure that a restart does not mend becomes the run's state, while the role is held."""
    from driftline.training.loop import TrainingLoop

    where = settings()
    spool = where.work_dir / "metrics" / f"{description.run}-trainer.jsonl"
    sink = open_sink(where.mlflow_uri, description.mlflow_run, spool=spool)
    signing_key = key_of(description, where)
    lease = run_store.take_epoch()
    loop = TrainingLoop(
        run_store,
        lease,
        params,
        group,
        sink,
        scratch=scratch,
        emit=emit,
        signing_key=signing_key,
    )
    patience_s = INTERRUPTED_S
    try:
        head = loop.run()
        patience_s = CLOSE_DEADLINE_S
    except EpochLost:
        log.error("another trainer has taken over: this one stops")
        raise
    except TRANSIENT:
        raise
    except DriftlineError as error:
        loop.fail(f"{type(error).__name__}: {error}")
        raise
    finally:
        sink.close(patience_s)
    emit({"event": "result", "step": head.step, "version": str(head.version), "state": head.state})


def main() -> None:
    """Parse the command line and run as a supervised child."""
    parser = argparse.ArgumentParser(prog="python -m driftline.training.entry", description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run in the store")
    child_main(partial(train, parser.parse_args().run))


if __name__ == "__main__":
    main()
