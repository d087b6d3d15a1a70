# pyright: basic
"""All ranks of a trainer, as rank 0 sees them (`TrainerGroup`), and what the others do (`follow`).

| Who | does | waits for | unblocked by |
|---|---|---|---|
| rank 0 | decides, announces, takes part | nothing but the acts themselves | - |
| other ranks | take part | a command | rank 0; the process group's timeout |

Every act is a method of `Trainer` or a function over its engine; each side of it is written here, next to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from driftline.training import checkpoints
from driftline.training.batch import TrainingBatch
from driftline.training.distributed import Act, Command, announce, await_command, share_batch
from driftline.training.gather import full_tensors, replace_weights
from driftline.training.protocol import StepOutcome
from driftline.training.statistics import StepStatistics
from driftline.training.trainer import Trainer


class TrainerGroup:
    """Rank 0's handle on the group, a `PolicyTrainer`. Each method is one act, announced to and done by all ranks."""

    def __init__(self, trainer: Trainer, scratch: Path) -> None:
        self._trainer = trainer
        self._scratch = scratch
        self._acting = False

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the embedding."""
        return self._trainer.tied_embeddings

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self._trainer.vocabulary

    @property
    def moved(self) -> bool | None:
        """Whether the last step changed the weights before rounding; None where nothing is rounded."""
        return self._trainer.moved

    def train(self, batch: TrainingBatch) -> StepOutcome:
        """Take one optimizer step."""
        sizes = (batch.token_ids_S.numel(), batch.sequences)
        with self._act(Command(Act.TRAIN, sizes)):
            return self._trainer.train(share_batch(batch, *sizes))

    def measure(self, batch: TrainingBatch) -> StepStatistics:
        """Measure a batch under the weights as they are, without a step."""
        sizes = (batch.token_ids_S.numel(), batch.sequences)
        with self._act(Command(Act.MEASURE, sizes)):
            return self._trainer.measure(share_batch(batch, *sizes))

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities (nats, temperature 1) of `token_ids[1:]` under the weights as they are."""
        with self._act(Command(Act.SCORE, (len(token_ids),))):
            if dist.get_world_size() > 1:
                dist.broadcast(torch.tensor(token_ids), src=0)
            return self._trainer.score(token_ids)

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters by checkpoint name. Must be exhausted: the other ranks run through all of them."""
        with self._act(Command(Act.GATHER)):
            yield from full_tensors(self._trainer.engine)

    def save(self, step: int) -> Path:
        """Save a checkpoint of `step` to this machine's scratch space; returns its directory."""
        with self._act(Command(Act.SAVE, (step,))), self._trainer.full_precision():
            return checkpoints.save_local(self._trainer.engine, self._scratch, step)

    def load(self, step: int) -> None:
        """Load the checkpoint of `step` from the scratch space, where its files were checked."""
        with self._act(Command(Act.LOAD, (step,))), self._trainer.full_precision():
            checkpoints.load_local(self._trainer.engine, self._scratch, step)

    def replace_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Set all weights, by checkpoint name; the optimizer's moments stay."""
        with self._act(Command(Act.REPLACE)), self._trainer.full_precision():
            replace_weights(self._trainer.engine, tensors)

    def stop_if_idle(self) -> None:
        """Let the other ranks go. After an act that failed halfway they cannot hear it, and end with this process."""
        if not self._acting:
            announce(Command(Act.STOP))

    @contextmanager
    def _act(self, command: Command) -> Iterator[None]:
        announce(command)
        self._acting = True
        yield
        self._acting = False


def follow(trainer: Trainer, scratch: Path) -> None:
    """Do what rank 0 announces, until it says to stop."""
    while True:
        command = await_command()
        match command.act:
            case Act.STOP:
                return
            case Act.TRAIN:
                tokens, sequences = command.arguments[:2]
                trainer.train(share_batch(None, tokens, sequences))
            case Act.MEASURE:
                tokens, sequences = command.arguments[:2]
                trainer.measure(share_batch(None, tokens, sequences))
            case Act.SCORE:
                ids = torch.zeros(command.arguments[0], dtype=torch.long)
                dist.broadcast(ids, src=0)
                trainer.score(ids.tolist())
            case Act.GATHER:
                for _ in full_tensors(trainer.engine):
                    pass
            case Act.SAVE:
                with trainer.full_precision():
                    checkpoints.save_local(trainer.engine, scratch, command.arguments[0])
            case Act.LOAD:
                with trainer.full_precision():
                    checkpoints.load_local(trainer.engine, scratch, command.arguments[0])
            case Act.REPLACE:
                with trainer.full_precision():
                    replace_weights(trainer.engine, {})
