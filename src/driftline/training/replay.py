# pyright: basic
"""Rebuilds one committed step from objects alone: `python -m driftline.training.replay --run R --step N`.

    published weights of version_in ─┐
    trajectories the record names ───┴─▶ one optimizer step ─▶ loss, gradient norm, divergence == the record's?

The optimizer's state is not needed for these. A step of several ranks is replayed on one: its sums come in another
order, and agree less closely.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, ObjectMissing
from driftline.params import RankSettings, RunParameters, settings
from driftline.process import child_main, emit
from driftline.records import StepRecord
from driftline.store import files
from driftline.store.client import open_store
from driftline.store.pins import pinned
from driftline.store.run_store import RunStore
from driftline.tracking import metrics

if TYPE_CHECKING:
    from driftline.training.protocol import PolicyTrainer, StepOutcome

log = logging.getLogger(__name__)

EXACT = 1e-5
"""Largest difference of log-probabilities (nats) in fp32 on one rank; what it makes of each figure is `allowed`."""
OTHER_ORDER = 1e-3
"""The same where the record's sums were taken over several ranks."""
COARSE = 5e-2
"""The same where weights and activations are bf16."""
NORM_ORDER = 1e-4
"""Least relative difference that a norm of gradients is allowed: its terms cancel, and so the order of sums shows."""
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a step, as recorded and as replayed."""

    name: str
    recorded: float
    replayed: float

    def agrees(self, tolerance: float) -> bool:
        """Whether the two differ by no more than log-probabilities that are off by `tolerance` nats explain."""
        return abs(self.recorded - self.replayed) <= allowed(self.name, self.recorded, tolerance)


def allowed(name: str, recorded: float, tolerance: float) -> float:
    """How much a figure may differ where each log-probability may differ by `tolerance` nats.

    k2 and k3 are of second order in the log ratios: near 0 they hardly move, and a tolerance that suits a loss would
    let any weights pass. A norm of gradients has no scale but its own.
    """
    if name in (metrics.K2, metrics.K3):
        return tolerance * (2 * math.sqrt(2 * abs(recorded)) + abs(recorded) + tolerance)
    if name == metrics.GRADIENT_NORM:
        return max(tolerance, NORM_ORDER) * abs(recorded)
    return tolerance * max(1.0, abs(recorded))


def find_record(run_store: RunStore, step: int) -> StepRecord:
    """The committed record of a step.

    Raises:
        ConfigurationError: The run has not committed it.
    """
    records = run_store.steps()
    if not 1 <= step <= len(records):
        raise ConfigurationError(f"run {run_store.run!r} has committed {len(records)} steps: there is no step {step}")
    return records[step - 1]


def tolerance_of(params: RunParameters) -> float:
    """How closely a replay on one rank must agree with the record."""
    if params.training.dtype != "float32":
        return COARSE
    return EXACT if params.training.ranks == 1 else OTHER_ORDER


def replay_step(
    group: PolicyTrainer, run_store: RunStore, params: RunParameters, record: StepRecord
) -> tuple[Figure, ...]:
    """Take the step again with a trainer group, whose weights are replaced; returns its figures beside the record's.

    Raises:
        ObjectMissing: An input of the step is gone.
        CorruptObject: One is damaged.
    """
    from driftline.training.resume import batch_of_record, published_tensors

    manifest = run_store.read_manifest(record.version_in)
    group.replace_weights(published_tensors(run_store, manifest))
    outcome = group.train(batch_of_record(run_store, record, params))
    return tuple(
        Figure(name, record.metrics[name], value)
        for name, value in figures(outcome).items()
        if name in record.metrics
    )


def figures(outcome: StepOutcome) -> Mapping[str, float]:
    """What of a step's outcome follows from weights and batch alone, by the names of the metrics."""
    found = outcome.statistics
    return {
        metrics.LOSS: found.loss,
        metrics.GRADIENT_NORM: outcome.gradient_norm,
        metrics.ENTROPY: found.entropy_nats,
        **metrics.of_divergence(found.divergence),
    }


def replay(run: str, step: int) -> None:
    """Replay a step in a process of its own; its result event says whether it agrees.

    Raises:
        ConfigurationError: There is no such step, or its inputs were collected.
    """
    where = settings()
    run_store = RunStore(open_store(where), run)
    description = run_store.describe()
    recorded = RunParameters.model_validate(description.parameters)
    record = find_record(run_store, step)
    model_dir = files.local_model(run_store.store, description.model, where.work_dir)
    alone = {"ranks": 1, "zero_stage": 0}
    params = recorded.model_copy(update={"training": recorded.training.model_copy(update=alone)})
    reader = f"replay-{uuid.uuid4().hex[:8]}"
    objects = {use.key for use in record.groups}
    with pinned(run_store.store, run, reader, versions=[record.version_in], objects=sorted(objects)):
        try:
            found = _in_group(run_store, params, record, model_dir)
        except ObjectMissing as error:
            raise ConfigurationError(
                f"step {step} of run {run!r} cannot be replayed: {error}: `driftline gc` keeps the inputs of the "
                "last steps only (--keep-steps)"
            ) from None
    tolerance = tolerance_of(recorded)
    emit(
        {
            "event": "result",
            "run": run,
            "step": step,
            "version_in": str(record.version_in),
            "tolerance": tolerance,
            "agrees": all(figure.agrees(tolerance) for figure in found),
            "figures": {
                figure.name: {
                    "record": figure.recorded,
                    "replay": figure.replayed,
                    "difference": abs(figure.recorded - figure.replayed),
                    "allowed": allowed(figure.name, figure.recorded, tolerance),
                }
                for figure in found
            },
        }
    )


def _in_group(run_store: RunStore, params: RunParameters, record: StepRecord, model_dir: Path) -> tuple[Figure, ...]:
    from driftline.training.lean_imports import import_transformers

    import_transformers()
    from driftline.training.distributed import join, leave
    from driftline.training.ranks import TrainerGroup
    from driftline.training.trainer import Trainer

    place = RankSettings()  # pyright: ignore[reportCallIssue]
    if place.world_size != 1:
        raise ConfigurationError("a replay is one process: unset RANK and WORLD_SIZE")
    join(place, DEADLINE_S)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            group = TrainerGroup(Trainer(params, model_dir), Path(scratch))
            return replay_step(group, run_store, params, record)
    finally:
        leave()


def main() -> None:
    """Parse the command line and run as a supervised child."""
    parser = argparse.ArgumentParser(prog="python -m driftline.training.replay", description="Replay one step.")
    parser.add_argument("--run", required=True, help="name of the run in the store")
    parser.add_argument("--step", required=True, type=int, help="number of the step")
    arguments = parser.parse_args()
    child_main(partial(replay, arguments.run, arguments.step))


if __name__ == "__main__":
    main()
