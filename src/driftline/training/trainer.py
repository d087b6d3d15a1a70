# pyright: basic
"""One rank of the DeepSpeed process group: batches in, optimizer steps out.

Every method is collective: all ranks call it, in the same order, with the same arguments.

One optimizer step consumes a batch once, so the proximal policy of the loss is the policy before the step, which is
the current one: its log-probabilities are those of the forward pass itself, detached, and no second pass is needed.
Sequences without an advantage teach nothing; they are scored without a gradient, at a third of the cost, so that
divergence and entropy are those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import Tensor

from driftline.errors import LogprobsNotFinite
from driftline.params import RunParameters
from driftline.training.batch import TrainingBatch
from driftline.training.model import TokenScorer, add_adapters, open_model, pad
from driftline.training.objective import SampledTokens, choice_of, token_objective
from driftline.training.packing import MicroBatchPlan, cut, padded_tokens, share
from driftline.training.protocol import StepOutcome
from driftline.training.rounding import RoundedModule
from driftline.training.statistics import StatisticsAccumulator, StepStatistics, lags_told_apart
from driftline.training.stopwatch import Stopwatch
from driftline.weights.tensors import DTYPES

ADAM_BETAS = (0.9, 0.999)


def deepspeed_configuration(params: RunParameters) -> dict[str, Any]:
    """DeepSpeed's configuration of a run. Micro-batches vary in number, so the trainer sets the boundaries."""
    training = params.training
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": training.max_gradient_norm,
        "bf16": {"enabled": training.dtype == "bfloat16"},
        "zero_optimization": {"stage": training.zero_stage},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": training.learning_rate,
                "betas": list(ADAM_BETAS),
                "weight_decay": training.weight_decay,
                # torch's own: DeepSpeed's fused ones are compiled at start, for minutes.
                "torch_adam": True,
            },
        },
        "steps_per_print": None,
    }


class Trainer:
    """A causal language model, its optimizer, and the rank's share of every batch."""

    def __init__(self, params: RunParameters, model_dir: Path) -> None:
        """Load the model and wrap it; `torch.distributed` is initialised already.

        Raises:
            ConfigurationError: The directory is no model.
        """
        self.params = params
        self.rank = torch.distributed.get_rank()
        self.ranks = torch.distributed.get_world_size()
        scorer = TokenScorer(open_model(model_dir, DTYPES[params.training.dtype]))
        if params.lora.rank:
            add_adapters(scorer.model, params.lora, params.seed)
        self.tied_embeddings = bool(scorer.model.config.tie_word_embeddings)
        self._objective = choice_of(params.training)
        self.vocabulary = int(scorer.model.config.vocab_size)
        trained: Any = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        configuration = deepspeed_configuration(params)
        self.engine: Any = deepspeed.initialize(model=scorer, model_parameters=trained, config=configuration)[0]
        rounds = params.published_dtype != params.training.dtype
        self._rounded = RoundedModule(self.engine) if rounds else None
        self._measuring = Stopwatch()
        self.moved: bool | None = None
        """Whether the last step changed the weights before rounding, on any rank; None where nothing is rounded."""

    def train(self, batch: TrainingBatch) -> StepOutcome:
        """Take one optimizer step on a batch.

        Raises:
            LogprobsNotFinite: On every rank, before the weights are touched.
        """
        lengths = batch.lengths_N.tolist()
        taught = self._plans((batch.advantages_N != 0).nonzero().flatten().tolist(), lengths)
        scored = self._plans((batch.advantages_N == 0).nonzero().flatten().tolist(), lengths)
        training, scoring = (share(plans, lengths, self.ranks)[self.rank] for plans in (taught or [()], scored))
        statistics = self._statistics(batch)
        views = _SequenceViews(batch)
        self._measuring.take()
        with torch.no_grad():
            for plan in scoring:
                self._micro_batch(views, plan, statistics)
        for turn, plan in enumerate(training):
            self.engine.set_gradient_accumulation_boundary(turn == len(training) - 1)
            loss = self._micro_batch(views, plan, statistics)
            # DeepSpeed averages gradients over ranks; the loss's denominators are global already.
            self.engine.backward(loss * self.ranks)
        self._reduce(statistics)
        _require_finite(statistics)
        with self.full_precision():
            gradient_norm = self._step()
        self.moved = self._any_rank(self._rounded.moved) if self._rounded else None
        padded = sum(padded_tokens(plan, lengths) for plan in [*taught, *scored])
        return StepOutcome(
            statistics=statistics.read(),
            gradient_norm=gradient_norm,
            trained_sequences=sum(map(len, taught)),
            micro_batches=len(training) + len(scoring),
            tokens=sum(lengths),
            padding_share=1 - sum(lengths) / max(1, padded),
            measuring_s=self._measuring.take(),
        )

    def measure(self, batch: TrainingBatch) -> StepStatistics:
        """Measure a batch under the weights as they are, without a step.

        A sequence whose log-probabilities are no numbers has figures that are none; the others are as they are.
        """
        lengths = batch.lengths_N.tolist()
        plans = share(self._plans(list(range(batch.sequences)), lengths), lengths, self.ranks)[self.rank]
        statistics, views = self._statistics(batch), _SequenceViews(batch)
        with torch.no_grad():
            for plan in plans:
                self._micro_batch(views, plan, statistics)
        self._reduce(statistics)
        return statistics.read()

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities (nats, temperature 1) of `token_ids[1:]`, each given its prefix."""
        ids_BT = torch.tensor([list(token_ids)])
        columns_N = torch.arange(1, len(token_ids))
        with torch.no_grad():
            logprobs_N, _ = self._forward(ids_BT, torch.zeros_like(columns_N), columns_N, 1.0)
        return [float(value) for value in logprobs_N]

    def full_precision(self) -> AbstractContextManager[None]:
        """Where the weights are stepped, saved, loaded or replaced: they are the optimizer's own, not rounded."""
        return self._rounded.full_precision() if self._rounded else nullcontext()

    def _step(self) -> float:
        """Step the optimizer; returns the global gradient norm before clipping."""
        if self.params.training.zero_stage == 0 and self.params.training.dtype == "float32":
            # DeepSpeed keeps no norm of plain fp32 gradients.
            gradients = [p.grad for p in self.engine.module.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
            self.engine.step()
            return norm
        self.engine.step()
        return float(self.engine.get_global_grad_norm() or 0.0)

    def _plans(self, indices: list[int], lengths: list[int]) -> list[MicroBatchPlan]:
        """Micro-batches, of all ranks, for some of the sequences."""
        chosen = cut([lengths[index] for index in indices], self.params.training.micro_batch_tokens)
        return [tuple(indices[i] for i in plan) for plan in chosen]

    def _micro_batch(self, views: _SequenceViews, plan: MicroBatchPlan, statistics: StatisticsAccumulator) -> Tensor:
        """Forward one micro-batch; returns its part of the loss, a scalar."""
        padded = pad([views.token_ids[i] for i in plan], [views.sampled[i] for i in plan])
        current_N, entropy_N = self._forward(
            padded.ids_BT, padded.rows_N, padded.columns_N, self.params.rollout.temperature
        )
        if not plan:
            return current_N.sum() * 0.0
        tokens = views.tokens_of(plan, current_N.device)
        return self._loss(tokens, current_N, entropy_N, statistics)

    def _loss(
        self, tokens: _Tokens, current_N: Tensor, entropy_N: Tensor, statistics: StatisticsAccumulator
    ) -> Tensor:
        sampled = tokens.sampled
        found = token_objective(current_N, sampled, self._objective)
        loss = -(tokens.weight_N * found.objective_N).sum()
        if current_N.is_cuda:
            # What is still being computed is no part of measuring it, which waits for it.
            torch.cuda.synchronize(current_N.device)
        with self._measuring.running():
            statistics.add(
                loss=loss,
                entropy_N=entropy_N,
                log_ratio_N=found.log_ratio_N,
                applied_N=found.applied_N,
                clipped_N=found.clipped_N,
                masked_N=found.masked_N,
                negative_N=found.negative_N,
                advantage_N=sampled.advantage_N,
                lag_N=sampled.lag_N,
                sequence_N=sampled.sequence_N,
            )
        return loss

    def _forward(
        self, ids_BT: Tensor, rows_N: Tensor, columns_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        device = self.engine.device
        return self.engine(ids_BT.to(device), rows_N.to(device), columns_N.to(device), temperature)

    def _statistics(self, batch: TrainingBatch) -> StatisticsAccumulator:
        return StatisticsAccumulator(batch.sequences, lags_told_apart(self.params.overlap.max_lag_versions))

    def _any_rank(self, flag: bool) -> bool:
        if self.ranks == 1:
            return flag
        shared = torch.tensor(int(flag), device=self.engine.device)
        torch.distributed.all_reduce(shared, op=torch.distributed.ReduceOp.MAX)
        return bool(shared)

    def _reduce(self, statistics: StatisticsAccumulator) -> None:
        if self.ranks > 1:
            device = self.engine.device
            sums, maxima = statistics.sums.to(device), statistics.maxima.to(device)
            torch.distributed.all_reduce(sums)
            torch.distributed.all_reduce(maxima, op=torch.distributed.ReduceOp.MAX)
            statistics.sums, statistics.maxima = sums.cpu(), maxima.cpu()


def _require_finite(statistics: StatisticsAccumulator) -> None:
    if statistics.not_finite is not None:
        error = LogprobsNotFinite(
            f"sequence {statistics.not_finite} of the batch has a log-probability under the current policy that is "
            "no number: look for overflow in the model's forward pass; with a limit in the section admission such a "
            "trajectory is dropped before it is trained on"
        )
        error.sequence = statistics.not_finite
        raise error


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The sampled tokens of one micro-batch, in the order in which they are scored."""

    sampled: SampledTokens
    weight_N: Tensor


class _SequenceViews:
    """The batch's tensors, sequence by sequence."""

    def __init__(self, batch: TrainingBatch) -> None:
        lengths = batch.lengths_N.tolist()
        self.token_ids = batch.token_ids_S.split(lengths)
        self.sampled = batch.sampled_S.split(lengths)
        self._behaviour = batch.behaviour_S.split(lengths)
        self._lag = batch.lag_S.split(lengths)
        self._advantages_N = batch.advantages_N
        self._weights_N = batch.weights_N

    def tokens_of(self, plan: MicroBatchPlan, device: torch.device) -> _Tokens:
        counts = torch.tensor([int(self.sampled[i].sum()) for i in plan])
        rows = torch.tensor(plan)
        return _Tokens(
            SampledTokens(
                behaviour_N=torch.cat([self._behaviour[i][self.sampled[i]] for i in plan]).to(device),
                lag_N=torch.cat([self._lag[i][self.sampled[i]] for i in plan]).to(device),
                advantage_N=self._advantages_N[rows].repeat_interleave(counts).float().to(device),
                sequence_N=rows.repeat_interleave(counts).to(device),
            ),
            weight_N=self._weights_N[rows].repeat_interleave(counts).float().to(device),
        )
