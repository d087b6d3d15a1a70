"""What the loop needs of a trainer, whatever it is made of: one of the library's four seams.

The real one is `ranks.TrainerGroup`, over DeepSpeed; tests have a stand-in of one weight. Every method is an act
of the whole process group, called by rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from driftline.training.batch import TrainingBatch
from driftline.training.statistics import StepStatistics


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one optimizer step did."""

    statistics: StepStatistics
    gradient_norm: float
    """Before clipping."""
    trained_sequences: int
    micro_batches: int
    """On one rank."""
    tokens: int
    """Computed, on all ranks, without padding."""
    padding_share: float
    measuring_s: float = 0.0
    """Seconds of one rank in which divergence was measured, on the way of the step."""


class PolicyTrainer(Protocol):
    """A policy, its optimizer, and the ranks that hold them."""

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the embedding."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        ...

    @property
    def moved(self) -> bool | None:
        """Whether the last step changed the optimizer's own weights, before rounding; None: they are not rounded."""
        ...

    def train(self, batch: TrainingBatch) -> StepOutcome:
        """Take one optimizer step on a batch. Not idempotent.

        Raises:
            LogprobsNotFinite: A log-probability is NaN or infinite; the message names the sequence. Raised on all
                ranks, so that none waits for the others.
        """
        ...

    def measure(self, batch: TrainingBatch) -> StepStatistics:
        """Measure a batch under the weights as they are: forward passes alone, no step. Idempotent.

        A sequence with a log-probability that is NaN or infinite has a k3 that is no number; it harms no other one.
        """
        ...

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities (nats, temperature 1) of `token_ids[1:]` under the weights as they are."""
        ...

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters by checkpoint name, each valid until the next. Must be exhausted."""
        ...

    def save(self, step: int) -> Path:
        """Write weights and optimizer state to this machine's scratch space; returns the directory."""
        ...

    def load(self, step: int) -> None:
        """Read back what `save(step)` wrote to the scratch space. Its files were checked by whoever brought them.

        Raises:
            ConfigurationError: There is none.
        """
        ...

    def replace_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Set all weights, by checkpoint name; the optimizer's moments stay."""
        ...
