"""Driver of the tests of real DeepSpeed ranks: `python -m tests.support.training_ranks MODEL OUT STAGES`.

Each rank runs this; rank 0 drives, the others follow, as in the trainer's own process. For each ZeRO stage (and
`VARIANTS`) it takes two steps, saves, takes a third, loads, takes the third again, replaces all
weights, takes a fourth; what it saw goes to OUT as safetensors and JSON.
"""

# pyright: basic
from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file

from driftline.errors import LogprobsNotFinite
from driftline.params import RankSettings
from driftline.records import Group
from driftline.training.batch import weights_of_valid
from driftline.training.protocol import PolicyTrainer
from driftline.training.resume import make_batch
from tests.support.training import group, parameters, random_group, trajectory


def batch(step: int):
    """The same batches in every process: the last one is of two short sequences, one micro-batch for two ranks."""
    rng = Random(step)
    groups = [random_group(number, rng) for number in range(4)]
    groups[0] = group(0, [1, 1, 1, 1])
    if step == 3:
        pair = (
            trajectory(0, 0, reward=1.0),
            trajectory(0, 1, reward=0.0, tokens=(9, 3, 2), mask=(False, True, True)),
        )
        groups = [Group(0, "task-0", "v1", pair)]
    return make_batch(groups, {g.number: weights_of_valid(g) for g in groups}, 0, run_parameters())


TEMPERATURE = 0.8
SMALL_RATE = 1e-4
"""A step of about a tenth of the distance between two bfloat16 numbers of the size of these weights."""
SPOILT = 17
"""A token."""
MASKING = {
    "importance": "geometric_rejection",
    "importance_low": 0.5,
    "importance_high": 2.0,
    "negative_sequence_nats": 0.2,
}
"""Parameters of the loss of the variant `masked`: corrections that look at whole sequences."""
LORA = {"rank": 2, "alpha": 4.0, "targets": ["q_proj", "down_proj"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": {"zero_stage": 1, "dtype": "bfloat16"},
    "null": {"learning_rate": 0.0},
    "masked": MASKING,
    "rounded0": {"learning_rate": SMALL_RATE, "published": "bfloat16"},
    "rounded1": {"zero_stage": 1, "learning_rate": SMALL_RATE, "published": "bfloat16"},
    "rounded3": {"zero_stage": 3, "learning_rate": SMALL_RATE, "published": "bfloat16"},
    "broken1": {"zero_stage": 1},
    "broken3": {"zero_stage": 3},
    "lora0": {"lora": LORA},
    "lora3": {"zero_stage": 3, "lora": LORA},
}
"""Name -> settings of the training section, published dtype, adapters; other names are ZeRO stages."""


def run_parameters(*, ranks: int = 1, published: str = "auto", lora: dict[str, Any] | None = None, **training: Any):
    training = {"learning_rate": 1e-2, "micro_batch_tokens": 64, "ranks": ranks, **training}
    return parameters(
        training=training,
        rollout={"temperature": TEMPERATURE},
        publication={"dtype": published},
        lora=lora or {},
    )


def lead(trainer: PolicyTrainer) -> tuple[dict, dict]:
    tensors: dict[str, torch.Tensor] = {}
    facts: dict[str, list] = {"steps": [], "moved": []}

    def note(label: str) -> None:
        tensors.update({f"{label}/{name}": tensor.float().clone() for name, tensor in trainer.full_tensors()})

    def step(number: int) -> None:
        found = trainer.train(batch(number))
        statistics = found.statistics
        facts["moved"].append(trainer.moved)
        facts["steps"].append(
            {
                "loss": statistics.loss,
                "gradient_norm": found.gradient_norm,
                "entropy": statistics.entropy_nats,
                "k3": statistics.divergence.k3,
                "tokens": statistics.divergence.tokens,
                "raw_max": statistics.importance_raw_max,
                "applied_max": statistics.importance_applied_max,
                "masked_tokens": statistics.masked_tokens,
                "k1_by_sequence": [found.k1 for found in statistics.by_sequence],
                "lags": list(statistics.by_lag),
            }
        )

    note("base")
    facts["probe"] = trainer.score([5, 6, 7, 8])
    measured = trainer.measure(batch(1))
    facts["measured"] = [measured.divergence.k3, [found.k1 for found in measured.by_sequence]]
    step(1)
    step(2)
    note("two")
    trainer.save(2)
    step(3)
    note("three")
    trainer.load(2)
    note("loaded")
    step(3)
    note("again")
    trainer.replace_weights({name.removeprefix("two/"): t for name, t in tensors.items() if name.startswith("two/")})
    note("replaced")
    facts["probe_replaced"] = trainer.score([5, 6, 7, 8])
    step(3)
    note("after")
    return tensors, facts


def spoil(trainer: PolicyTrainer) -> tuple[dict, dict]:
    """What a token does whose embedding is no number: to a batch that is measured, and to a step."""
    tensors = {name: tensor.float().clone() for name, tensor in trainer.full_tensors()}
    tensors["model.embed_tokens.weight"][SPOILT] = torch.nan
    trainer.replace_weights(tensors)
    facts: dict[str, Any] = {"k3": [found.k3 for found in trainer.measure(batch(1)).by_sequence]}
    try:
        trainer.train(batch(1))
    except LogprobsNotFinite as error:
        facts["error"] = str(error)
    return {}, facts


def main(model: Path, out: Path, stages: list[str]) -> None:
    from driftline.training.distributed import join, leave
    from driftline.training.ranks import TrainerGroup, follow
    from driftline.training.trainer import Trainer

    place = RankSettings()  # pyright: ignore[reportCallIssue]
    join(place, 60.0)
    for name in stages:
        options: dict[str, Any] = VARIANTS[name] if name in VARIANTS else {"zero_stage": int(name)}
        trainer = Trainer(run_parameters(ranks=place.world_size, **options), model)
        scratch = out / f"scratch-{name}"
        if place.rank > 0:
            try:
                follow(trainer, scratch)
            except LogprobsNotFinite as error:
                (out / f"{name}-rank-{place.rank}.txt").write_text(str(error))
            continue
        leader = TrainerGroup(trainer, scratch)
        tensors, facts = spoil(leader) if name.startswith("broken") else lead(leader)
        leader.stop_if_idle()
        save_file(tensors, out / f"{name}.safetensors")
        (out / f"{name}.json").write_text(json.dumps(facts))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","))
