"""What seconds are charged to: on the way to a trainable batch, and while a pool is idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Cause = Literal[
    "queue", "reset", "prefill", "decode", "tool", "reward", "straggler", "publish", "apply", "admission", "trainer"
]
"""What an instant of the time to a trainable batch is charged to."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

MEANING: Mapping[Cause, str] = {
    "queue": "waiting for a slot of the cell or the engine",
    "reset": "resetting the environment",
    "prefill": "computing prompts",
    "decode": "sampling tokens",
    "tool": "running tools",
    "reward": "computing the reward",
    "straggler": "waiting for the last tenth of the members",
    "publish": "from the last episode's end until the trainer held the batch, but for the two below",
    "apply": "until the engine acknowledged the previous commit's weights",
    "admission": "scoring and judging, after the last episode's end",
    "trainer": "committing and checkpointing the step before, while the batch was there",
}

ROLLOUT_IDLE: Mapping[str, str] = {
    "apply": "weights on their way into the engine",
    "claim": "claims under way",
    "trainer": "as far ahead of the trainer as may be",
    "other": "starting, or nothing recorded",
}
"""What a cell without any episode in flight waits for."""

TRAIN_IDLE: Mapping[str, str] = {**MEANING, "weights": "storing a version"}
"""What the training pool waits for."""

BOUNDS = ("engine", "tools", "stragglers", "trainer", "store")
"""What may bound a run."""
