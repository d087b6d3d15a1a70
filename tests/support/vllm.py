"""A real vLLM engine for tests: started once a module, served from a real store."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from driftline.engine.environment_variables import engine_environment
from driftline.engine.protocol import Generation, GenerationRequest, UpdateReport
from driftline.engine.served import ServedEngine
from driftline.engine.vllm_engine import VllmEngine
from driftline.params import EngineParameters, Settings
from driftline.records import WeightsManifest
from tests.support.tiny_llama import reference_logprobs

AGREEMENT_NATS = 1e-4
"""Largest difference between engine and trainer that fp32 may show."""


@dataclass
class EngineUnderTest:
    """An engine, the models whose weights it was given, and its updates so far."""

    engine: VllmEngine | ServedEngine
    models: list[Any]
    manifests: list[WeightsManifest]
    reports: list[UpdateReport] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 16,
        seed: int = 1,
        stop_ids: Sequence[int] = (),
        priority: int = 0,
    ) -> Generation:
        name = f"t{next(self.numbers)}"
        return await self.engine.generate(
            GenerationRequest(name, tuple(prompt), max_tokens, tuple(stop_ids), 1.0, seed, priority=priority)
        )

    async def update(self, number: int) -> UpdateReport:
        report = await self.engine.update(self.manifests[number])
        self.reports.append(report)
        return report

    def disagreement(self, prompt: Sequence[int], turn: Generation, number: int, end: int | None = None) -> float:
        """Largest |difference| between a turn's log-probabilities and those of a version, up to token `end`."""
        wanted = reference_logprobs(self.models[number], [*prompt, *turn.token_ids])[len(prompt) - 1 :]
        pairs = list(zip(turn.logprobs, wanted, strict=True))[:end]
        return max((abs(a - b) for a, b in pairs), default=0.0)

    @property
    def version(self) -> int:
        held = self.engine.status().version
        return -1 if held is None else held.number

    @property
    def pauses(self) -> str:
        seconds = [report.pause_s for report in self.reports if report.applied]
        return f"{len(seconds)} pauses: median {statistics.median(seconds):.3f} s, longest {max(seconds):.3f} s"


def engine_parameters(**options: Any) -> EngineParameters:
    return EngineParameters(**{"max_model_len": 512, "max_num_seqs": 128, "start_deadline_s": 550.0, **options})


@contextlib.contextmanager
def vllm_environment(params: EngineParameters) -> Any:
    """What a spawner sets, in this process for once; and one thread, as the processors are the engine's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine_environment(params, os.environ).items():
            patch.setenv(name, value)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextlib.asynccontextmanager
async def running_engine(
    params: EngineParameters, model_dir: Path, run: str, settings: Settings
) -> AsyncIterator[VllmEngine]:
    with vllm_environment(params):
        engine = VllmEngine(params, model_dir, run=run, settings=settings)
        try:
            await engine.start()
            yield engine
        finally:
            await engine.close()


@contextlib.asynccontextmanager
async def served_engine(
    params: EngineParameters, model_dir: Path, run: str, settings: Settings
) -> AsyncIterator[ServedEngine]:
    params = params.model_copy(update={"backend": "vllm_server"})
    engine = ServedEngine(params, model_dir, run=run, settings=settings)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
