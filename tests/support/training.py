"""What tests of the trainer share: trajectories and groups by hand, a tiny model, a trainer without DeepSpeed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from driftline.divergence.estimators import DivergenceSummary
from driftline.params import RunParameters
from driftline.records import (
    CellAccount,
    EpisodeSeconds,
    Group,
    Head,
    ModelSource,
    RunDescription,
    Segment,
    Trajectory,
    TrajectoryStatus,
)
from driftline.store.run_store import RunStore
from driftline.training.batch import TrainingBatch
from driftline.training.protocol import StepOutcome
from driftline.training.statistics import StatisticsAccumulator, StepStatistics

VOCABULARY = 43


def trajectory(
    group: int = 0,
    member: int = 0,
    *,
    reward: float | None = 1.0,
    tokens: Sequence[int] = (5, 6, 7, 8),
    mask: Sequence[bool] = (False, True, False, True),
    logprobs: Sequence[float] | None = None,
    segments: Sequence[tuple[int, int]] = ((0, 0),),
    status: TrajectoryStatus = "ok",
    reason: str = "",
    run: str = "r",
    finished: float = 20.0,
) -> Trajectory:
    """One member; log-probabilities default to -0.5 where sampled."""
    return Trajectory(
        run=run,
        group=group,
        member=member,
        attempt=0,
        cell="c0",
        task_id=f"task-{group}",
        task_set="v1",
        environment="pointer_chase/v1",
        token_ids=tuple(tokens),
        loss_mask=tuple(mask),
        logprobs=tuple(logprobs) if logprobs is not None else tuple(-0.5 if sampled else 0.0 for sampled in mask),
        segments=tuple(Segment(start, version) for start, version in segments),
        turns=1,
        reward=reward,
        success=None if reward is None else reward > 0,
        status=status,
        reason=reason,
        seconds=EpisodeSeconds(decoding=1.0),
        started_unix=finished - 10.0,
        finished_unix=finished,
    )


def group(number: int, rewards: Sequence[float | None], *, version: int = 0, run: str = "r", key: str = "") -> Group:
    """A group with one member a reward; None is a member that failed."""
    members = tuple(
        trajectory(
            number,
            member,
            reward=reward,
            segments=((0, version),),
            status="ok" if reward is not None else "env_error",
            reason="" if reward is not None else "boom",
            run=run,
        )
        for member, reward in enumerate(rewards)
    )
    return Group(number, f"task-{number}", "v1", members, key)


def random_group(number: int, rng: Random, *, members: int = 4, version: int = 0, run: str = "r") -> Group:
    """A group of random sequences of very different lengths, as a wide policy would sample them."""
    made: list[Trajectory] = []
    for member in range(members):
        length = rng.choice([4, 6, 9, 14, 30])
        mask = [False] + [rng.random() < 0.5 for _ in range(length - 2)] + [True]
        made.append(
            trajectory(
                number,
                member,
                reward=float(rng.random() < 0.5),
                tokens=[rng.randrange(VOCABULARY) for _ in range(length)],
                mask=mask,
                logprobs=[-rng.uniform(2.0, 5.0) if sampled else 0.0 for sampled in mask],
                segments=((0, version),),
                run=run,
            )
        )
    return Group(number, f"task-{number}", "v1", tuple(made))


def tiny_model(directory: Path, *, tied: bool = False, seed: int = 0) -> Path:
    """Save a two-layer Llama with a character tokenizer as a model directory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from driftline.engine.tokens import save_character_tokenizer
    from environments import FAMILIES

    torch.manual_seed(seed)
    configuration = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    alphabet = FAMILIES["pointer_chase/v1"].alphabet
    assert alphabet is not None
    save_character_tokenizer(alphabet, directory, max_length=128)
    LlamaForCausalLM(configuration).save_pretrained(directory)
    return directory


def parameters(**sections: Mapping[str, Any]) -> RunParameters:
    """Small batches: two groups of four, three steps."""
    small: dict[str, dict[str, Any]] = {
        "rollout": {"group_size": 4, "groups_per_step": 2},
        "overlap": {"lead_groups": 2, "max_lag_versions": 2},
        "training": {"steps": 3, "micro_batch_tokens": 64, "learning_rate": 1e-2},
        "engine": {"max_model_len": 128},
    }
    for name, section in sections.items():
        small[name] = {**small.get(name, {}), **section}
    return RunParameters.model_validate(small)


def new_run(store: Any, run: str, params: RunParameters, model: ModelSource | None = None) -> RunStore:
    """Create `run.json` and HEAD."""
    run_store = RunStore(store, run)
    source = model or ModelSource("0" * 32, "models/none/", (), tied_embeddings=False)
    run_store.create(
        RunDescription(
            run=run,
            created_unix=1.0,
            parameters=params.model_dump(mode="json"),
            code_version="test",
            model=source,
            task_set="v1",
            held_out_task_set="v1",
            mlflow_run=None,
        )
    )
    run_store.create_head(Head(0, 0, None, None, 0, (), params.overlap.lead_groups, ((0, "v1"),)))
    return run_store


class GroupStream:
    """Writes finished groups as a cell does, each object with the cell's account of their tokens."""

    def __init__(self, run_store: RunStore, cell: str = "c0") -> None:
        self.sequence = 0
        self._run_store = run_store
        self._cell = cell
        self._tokens = 0

    def write(self, *groups: Group) -> str:
        self._tokens += sum(member.sampled_tokens for group in groups for member in group.trajectories)
        self.sequence += 1
        account = CellAccount(
            self._cell, "i1", self.sequence, self.sequence, self._tokens, self._tokens, 0, 0, {}, self.sequence
        )
        return self._run_store.append_groups(self._cell, self.sequence - 1, groups, account)


def sequences_of(batch: TrainingBatch) -> list[tuple[Tensor, Tensor, Tensor, float, float]]:
    """(ids, sampled, behaviour, advantage, weight) of each sequence."""
    lengths = batch.lengths_N.tolist()
    parts = (batch.token_ids_S.split(lengths), batch.sampled_S.split(lengths), batch.behaviour_S.split(lengths))
    return list(zip(*parts, batch.advantages_N.tolist(), batch.weights_N.tolist(), strict=True))


OPEN = {
    "down_weight_k3_nats": None,
    "drop_k3_nats": None,
    "down_weight_ess_fraction": None,
    "drop_ess_fraction": None,
}
"""The section `admission` without limits."""


class FakeGroup:
    """A trainer group of one weight: each step adds 1 to it. Records the acts in order."""

    tied_embeddings = False
    vocabulary = VOCABULARY
    moved: bool | None = None

    def __init__(self, current: float | None = None) -> None:
        """`current`: what the policy gives every token, nats; None is what it was sampled with."""
        self.weight = torch.zeros(2)
        self.current = current
        self.acts: list[str] = []
        self.batches: list[TrainingBatch] = []
        self.measured: list[int] = []
        self.outcome = outcome()

    def train(self, batch: TrainingBatch) -> StepOutcome:
        self.acts.append("train")
        self.batches.append(batch)
        self.weight = self.weight + 1
        return by_sequence(self.outcome, batch, self.current)

    def measure(self, batch: TrainingBatch) -> StepStatistics:
        self.measured.append(batch.sequences)
        return by_sequence(self.outcome, batch, self.current).statistics

    def score(self, token_ids: Sequence[int]) -> list[float]:
        return [-1.0] * (len(token_ids) - 1)

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight

    def save(self, step: int) -> Path:
        self.acts.append(f"save {step}")
        directory = Path(tempfile.mkdtemp())
        torch.save(self.weight, directory / "state.pt")
        return directory

    def load(self, step: int) -> None:
        self.acts.append(f"load {step}")
        self.weight = torch.full((2,), float(step))

    def replace_weights(self, tensors: Mapping[str, Tensor]) -> None:
        self.acts.append("replace")
        self.weight = tensors["weight"]


def by_sequence(found: StepOutcome, batch: TrainingBatch, current: float | None = None) -> StepOutcome:
    """The outcome with what is told of each sequence, for a policy that gives every token `current` nats."""
    statistics = StatisticsAccumulator(batch.sequences)
    chosen = batch.sampled_S
    sequence = torch.arange(batch.sequences).repeat_interleave(batch.lengths_N)[chosen]
    behaviour = batch.behaviour_S[chosen]
    log_ratio = torch.zeros_like(behaviour) if current is None else current - behaviour
    statistics.add(
        loss=torch.tensor(0.0),
        entropy_N=torch.zeros(len(sequence)),
        log_ratio_N=log_ratio,
        applied_N=log_ratio.exp(),
        clipped_N=torch.zeros(len(sequence), dtype=torch.bool),
        advantage_N=batch.advantages_N[sequence],
        lag_N=batch.lag_S[chosen],
        sequence_N=sequence,
    )
    read = statistics.read()
    told = {
        name: getattr(read, name)
        for name in (
            "by_sequence",
            "by_sequence_and_lag",
            "masked_by_sequence",
            "negative_by_sequence",
            "trained_by_sequence",
        )
    }
    return replace(found, statistics=replace(found.statistics, **told))


def outcome(trained_sequences: int = 8) -> StepOutcome:
    """What a step measured, in round numbers."""
    divergence = DivergenceSummary(10, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.1)
    return StepOutcome(
        statistics=StepStatistics(
            loss=0.7,
            entropy_nats=0.8,
            divergence=divergence,
            floor=DivergenceSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0),
            importance_raw_max=3.0,
            importance_applied_mean=1.05,
            importance_applied_max=2.0,
            importance_truncated_share=0.1,
            clip_share=0.0,
            advantage_abs_mean=0.9,
            difference_max_nats=1.1,
            floor_difference_max_nats=0.0,
        ),
        gradient_norm=1.5,
        trained_sequences=trained_sequences,
        micro_batches=2,
        tokens=32,
        padding_share=0.25,
    )
