"""What a step and its batch say of themselves for the record. Pure."""

from __future__ import annotations

from driftline.records import GroupUse, StepTimes
from driftline.tracking.critical_path import attribute
from driftline.training.intake import ReadyBatch
from driftline.training.protocol import StepOutcome
from driftline.training.reporting import step_metrics


def measured(
    ready: ReadyBatch,
    uses: tuple[GroupUse, ...],
    outcome: StepOutcome,
    times: StepTimes,
    *,
    version: int,
    give_ups: int,
    learning_rate: float,
    publish_bytes: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """The time to the batch, in seconds by cause, and the metrics of a step.

    Args:
        ready: Its batch.
        uses: How groups entered it.
        outcome: What it did.
        times: When its phases began and ended.
        version: Number of the version trained from.
        give_ups: Groups given up since the step before.
        learning_rate: Of the step.
        publish_bytes: Of the files of the version that it has made.
    """
    parts: dict[str, float] = {
        **attribute(
            times.previous_commit,
            ready.ready,
            ready.groups,
            applied_unix=ready.applied,
            wait_begin=ready.wait_begin,
            admission=ready.admission,
        )
    }
    values = step_metrics(
        outcome,
        ready.groups,
        uses,
        version=version,
        give_ups=give_ups,
        learning_rate=learning_rate,
        times=times,
        time_to_batch_s=parts,
        publish_bytes=publish_bytes,
    )
    return parts, values
