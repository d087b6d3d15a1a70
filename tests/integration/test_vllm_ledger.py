"""The token ledger of a run whose cell samples with a real vLLM engine: the counts of cell and engine agree."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from driftline.rollout.cell import collect
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.sink import NullSink
from driftline.training.batch import TrainingBatch
from driftline.training.loop import TrainingLoop
from driftline.training.protocol import StepOutcome
from tests.support.rollout import FAMILY, RENDERER
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import reference_logprobs, save, tiny_llama
from tests.support.toy_run import create_run, toy_parameters
from tests.support.training import FakeGroup
from tests.support.vllm import running_engine

RUN = "vllm-ledger"
STEPS = 6
CONTEXT = 256


class LlamaGroup(FakeGroup):
    """A trainer group whose policy is a real model; each step moves its weights a little."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @torch.no_grad()
    def train(self, batch: TrainingBatch) -> StepOutcome:
        generator = torch.Generator().manual_seed(len(self.batches))
        for parameter in self.model.parameters():
            parameter += 1e-3 * torch.randn(parameter.shape, generator=generator)
        return super().train(batch)

    def score(self, token_ids: Any) -> list[float]:
        return reference_logprobs(self.model, token_ids)

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.state_dict().items()


@pytest.mark.timeout(600)
async def test_every_token_of_a_real_engine_is_accounted_for_at_every_step(seaweed: Seaweed, tmp_path: Path) -> None:
    params = toy_parameters(
        engine={"backend": "vllm", "max_model_len": CONTEXT, "max_num_seqs": 32, "start_deadline_s": 550.0},
        environment={"max_turns": 5},
        rollout={"episodes_in_flight": 32},
        overlap={"lead_groups": 6, "max_lag_versions": 2},
        training={"steps": STEPS},
    )
    model = tiny_llama(0, positions=CONTEXT)
    runs = create_run(seaweed.store(), params, run=RUN)
    model_dir = save(model, tmp_path / "model")
    loop = TrainingLoop(
        runs, runs.take_epoch(), params, LlamaGroup(model), NullSink(), scratch=tmp_path, emit=lambda event: None
    )
    training = threading.Thread(target=loop.run)
    told: list[Mapping[str, Any]] = []
    async with running_engine(params.engine, model_dir, RUN, seaweed.settings) as engine:
        training.start()
        await collect(
            RunStore(seaweed.store(), RUN),
            params,
            cell="c0",
            engine=engine,
            renderer=RENDERER,
            family=FAMILY,
            sink=NullSink(),
            on_progress=told.append,
        )
        status = engine.status()
    await asyncio.to_thread(training.join)
    records = runs.steps()
    assert [record.metrics[metrics.LEDGER_IMBALANCE] for record in records] == [0.0] * STEPS
    last = records[-1].ledger
    assert last is not None
    assert last.generated > 500
    assert last.probe >= 1
    final = runs.offset("c0")
    assert final is not None
    assert final.account is not None
    assert final.account.imbalance == 0
    assert final.account.generated == status.generated_tokens
    assert final.account.in_flight == 0
    proved = [event["version"] for event in told if "version" in event]  # versions may be skipped
    assert final.account.probe == status.scored_tokens == len(proved), "one token for each proof of a version"
    delivered = sum(t.sampled_tokens for group in runs.new_groups() for t in group.trajectories)
    assert final.account.delivered == delivered
    assert sum(final.account.cancelled.values()) == status.generated_tokens - delivered - status.scored_tokens
