# pyright: basic
"""The process group of a trainer's ranks: how it begins and ends, and what rank 0 tells the others.

Rank 0 decides; every collective act of the trainer is announced by a command, so that all ranks enter it together
and leave the group together. A command is five integers; a batch follows as tensors. Nothing is pickled.
"""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist

from driftline.params import RankSettings, adopt_environment
from driftline.training.batch import DTYPES, TOKEN_FIELDS, TrainingBatch

MARGIN_S = 300.0
"""How much longer than the longest wait for a batch a rank waits for the others."""
ARGUMENTS = 4


class Act(enum.IntEnum):
    """What all ranks do next."""

    STOP = 0
    TRAIN = 1
    SCORE = 2
    GATHER = 3
    SAVE = 4
    LOAD = 5
    REPLACE = 6
    MEASURE = 7


@dataclass(frozen=True, slots=True)
class Command:
    """An act and its arguments."""

    act: Act
    arguments: tuple[int, ...] = ()


def join(place: RankSettings, timeout_s: float) -> None:
    """Join the process group (gloo for host tensors, NCCL for CUDA), and let DeepSpeed adopt it.

    One rank needs no network; more find one another by `MASTER_ADDR` and `MASTER_PORT`.
    """
    timeout = datetime.timedelta(seconds=timeout_s + MARGIN_S)
    rank, ranks = place.rank, place.world_size
    # DeepSpeed asks the process environment who it is.
    adopt_environment({"RANK": str(rank), "LOCAL_RANK": str(place.local_rank), "WORLD_SIZE": str(ranks)})
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if ranks == 1:
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(backend, init_method="env://", rank=rank, world_size=ranks, timeout=timeout)
    import deepspeed
    import deepspeed.ops

    _without_compiled_operators(deepspeed.ops)
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


def leave() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def announce(command: Command) -> None:
    """Rank 0: tell the other ranks what to do next."""
    if dist.get_world_size() > 1:
        values = [command.act, *command.arguments] + [0] * (ARGUMENTS - len(command.arguments))
        dist.broadcast(torch.tensor(values, dtype=torch.int64), src=0)


def await_command() -> Command:
    """Other ranks: wait for rank 0."""
    values = torch.zeros(1 + ARGUMENTS, dtype=torch.int64)
    dist.broadcast(values, src=0)
    act, *arguments = values.tolist()
    return Command(Act(act), tuple(arguments))


def share_batch(batch: TrainingBatch | None, tokens: int, sequences: int) -> TrainingBatch:
    """Give rank 0's batch to every rank.

    Args:
        batch: The batch on rank 0, None elsewhere.
        tokens: Tokens of the batch.
        sequences: Sequences of the batch.
    """
    if batch is not None:
        tensors = batch.tensors()
    else:
        sizes = [tokens] * TOKEN_FIELDS + [sequences] * (len(DTYPES) - TOKEN_FIELDS)
        tensors = [torch.zeros(size, dtype=dtype) for size, dtype in zip(sizes, DTYPES, strict=True)]
    if dist.get_world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
    return TrainingBatch(*tensors)


def _without_compiled_operators(ops: ModuleType) -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives at start (minutes, and a C++ compiler).

    DeepSpeed looks up which operators can be built in this cached table; gloo does without them.
    """
    vars(ops)["__compatible_ops__"] = {}
