# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The benchmark's part of a TRL run: what is asked for, and what is measured.

The clock runs from the moment at which TRL has everything ready to train, engine included, and stands while the
weights of a step are written.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from transformers import TrainerCallback

from benchmarks.trl import weights_name

RESULT = "steps.json"


@dataclass(frozen=True)
class Asked:
    """What a run is asked to do; a JSON object with these fields."""

    model_dir: str
    tasks: str
    """File of task payloads, one JSON object a line, in the order in which they are played."""
    out: str
    """Directory for the results."""
    seed: int
    steps: int
    learning_rate: float
    groups: int
    group_size: int
    max_turns: int
    max_tokens_per_turn: int
    context_tokens: int
    vllm: bool
    tool_waits: bool
    weights_every: int
    """Steps between two files of weights; 0 writes none."""


def asked() -> Asked:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--asked", type=Path, required=True, help="file with an `Asked` as JSON")
    return Asked(**json.loads(parser.parse_args().asked.read_text()))


class Measure(TrainerCallback):
    """Writes the seconds, processor seconds and mean reward of each step, and weights now and then."""

    def __init__(self, asked: Asked, trainer) -> None:
        self._asked, self._trainer = asked, trainer
        self._out = Path(asked.out)
        self._steps: list[dict] = []
        self._from = self._processor_from = 0.0

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Start the clock."""
        self._go_on()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Note a step; what this takes does not count."""
        seconds = time.perf_counter() - self._from
        processor_s = time.process_time() - self._processor_from
        reward = self._trainer._metrics["train"]["reward"][-1]
        self._steps.append({"seconds": seconds, "processor_s": processor_s, "reward": reward})
        every = self._asked.weights_every
        if every and state.global_step % every == 0:
            tensors = {
                name: tensor.detach().contiguous() for name, tensor in self._trainer.model.state_dict().items()
            }
            save_file(tensors, self._out / weights_name(state.global_step))
        self._go_on()

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Write all steps."""
        (self._out / RESULT).write_text(json.dumps(self._steps))

    def _go_on(self) -> None:
        self._from, self._processor_from = time.perf_counter(), time.process_time()
