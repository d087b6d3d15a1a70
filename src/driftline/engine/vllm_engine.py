# pyright: basic
"""The generation engine: vLLM in this process, with its workers in processes of their own.

The same class serves the CPU build and `vllm` on GPUs. `driftline.engine.environment_variables` says what the
process environment must hold before this module's engine is started.

How a version is taken up, and what `generate` calls see of it:

    | phase   | engine                          | calls in flight                 | new calls        |
    |---------|---------------------------------|---------------------------------|------------------|
    | staging | workers fetch and verify        | go on                           | go on            |
    | swap    | paused: layers get new weights  | stand still                     | wait at the gate |
    | probe   | resumed; scores the probe first | go on; a result is held back    | wait at the gate |
    | served  | gate open                       | results are given out           | go on            |

So no token that unproven weights have sampled leaves the engine. Staging that fails leaves the old version in
place, and it goes on serving. A swap or a probe that fails for good ends the engine: it holds half-applied or
wrong weights, and everything in flight fails with `EngineDied`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftline.engine.protocol import EngineStatus, Generation, GenerationRequest, UpdateReport
from driftline.engine.token_account import Request, TokenAccount
from driftline.engine.vllm_arguments import build, speculation
from driftline.engine.vllm_process import EngineProcess
from driftline.engine.vllm_requests import count_requests, generation, sampling, scoring
from driftline.engine.vllm_update import Swap, probe_difference, probe_tolerance
from driftline.errors import (
    ConfigurationError,
    DeadlineExceeded,
    EngineStartFailed,
    ProbeNotReproduced,
    WeightUpdateFailed,
)
from driftline.params import EngineParameters, Settings
from driftline.params import settings as process_settings
from driftline.records import PolicyVersion, WeightsManifest
from driftline.weights.checkpoint import read_model_directory

logger = logging.getLogger(__name__)

PROBE_PRIORITY = -(2**20)


class VllmEngine:
    """Implements `Engine`. Not to be started again after `close`."""

    def __init__(
        self, params: EngineParameters, model_dir: Path, *, run: str, settings: Settings | None = None
    ) -> None:
        """Describe an engine; nothing starts yet.

        Args:
            params: The engine's parameters.
            model_dir: The model directory it starts from.
            run: The run whose weights it serves; manifests of others are refused.
            settings: Where the store is; None is this process's own.
        """
        self._params = params
        self._model_dir = model_dir
        self._run = run
        self._settings = settings or process_settings()
        self._process = EngineProcess(self._build, start_deadline_s=params.start_deadline_s)
        self._counters: Any = None
        self._account = TokenAccount()
        self._counted: dict[str, Request] = {}
        self._vocabulary = 0
        self._version: PolicyVersion | None = None
        self._served = asyncio.Event()
        self._served.set()
        self._updating: asyncio.Task[UpdateReport] | None = None
        self._ids = itertools.count()

    async def start(self) -> None:
        """Start vLLM from the model directory.

        Raises:
            EngineStartFailed: The directory is no model, or vLLM was not ready in time.
            ConfigurationError: `engine.max_model_len` exceeds what the model was made for, or the installed vLLM
                cannot do what is asked for.
        """
        speculation(self._params)
        try:
            directory = read_model_directory(self._model_dir)
        except ConfigurationError as error:
            raise EngineStartFailed(f"the engine did not start: {error}") from None
        limit = directory.max_positions
        if limit is not None and self._params.max_model_len > limit:
            raise ConfigurationError(
                f"engine.max_model_len is {self._params.max_model_len}, but the model in {self._model_dir} has "
                f"{limit} positions: lower it to {limit}"
            )
        self._vocabulary = directory.vocabulary
        await self._process.start()
        try:
            await self._swap.prepare(self._run, self._settings)
        except BaseException as error:
            self._process.kill("it could not be prepared")
            if isinstance(error, Exception):
                raise EngineStartFailed(f"the engine did not start: {error}") from error
            raise

    async def serve_run(self, run: str) -> None:
        """Serve another run of the same base model: from no version on, and with all counts at zero.

        Raises:
            ConfigurationError: Requests or an update are under way.
            EngineDied: The engine is gone.
        """
        self._process.check_alive()
        busy = self._counted or (self._updating is not None and not self._updating.done())
        if busy:
            raise ConfigurationError(
                f"the engine still works for run {self._run!r}: await its requests and its update before it "
                f"serves {run!r}"
            )
        await self._swap.follow(run, self._settings)
        self._run, self._version = run, None
        self._account = TokenAccount()
        self._counters.begin()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn. The prompt cache is shared only within the version held at this moment."""
        self._process.check_alive()
        self._check_prompt(request.prompt_ids, request.max_tokens)
        deadline_s = self._params.request_deadline_s
        with self._account.request() as counted:
            try:
                async with asyncio.timeout(deadline_s):
                    await self._open()
                    version = self._version
                    output = await self._run_request(
                        request.prompt_ids,
                        sampling(request),
                        counted,
                        salt=f"{self._run}/{version}",
                        priority=request.priority,
                    )
                    await self._open()
            except TimeoutError:
                raise DeadlineExceeded(
                    f"request {request.id} was not finished within {deadline_s:.0f} s: raise "
                    "engine.request_deadline_s, lower rollout.episodes_in_flight, or see whether the engine hangs"
                ) from None
            return generation(output, version)

    async def update(self, manifest: WeightsManifest) -> UpdateReport:
        """Take up a policy version; see the table above.

        Raises:
            WeightUpdateFailed: The version cannot be fetched or is corrupt (the old one stays and serves on), or
                could not be applied or proven (the engine is ended).
            EngineDied: The engine is gone.
        """
        self._process.check_alive()
        self._check_manifest(manifest)
        if manifest.version == self._version:
            return UpdateReport(manifest.version, False, 0.0, 0.0, 0.0, 0.0)
        if self._updating is not None and not self._updating.done():
            raise WeightUpdateFailed(f"version {manifest.version}: another update is under way: await it first")
        # A cancelled caller must not leave the engine paused: the update is finished all the same.
        self._updating = asyncio.create_task(self._update(manifest), name=f"update-{manifest.version}")
        self._updating.add_done_callback(_note_failure)
        return await asyncio.shield(self._updating)

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities of `token_ids[1:]` under the version held."""
        await self._open()
        return await self._score(token_ids, priority=0)

    def status(self) -> EngineStatus:
        """Counters and gauges, as the last engine step reported them."""
        llm, counters = self._process.llm, self._counters
        if counters is None:
            return EngineStatus(self._version, 0, 0, 0.0, 0, 0.0, 0, 0)
        unfinished = llm.get_num_unfinished_requests() if llm is not None else 0
        waiting = min(counters.waiting, unfinished)
        return EngineStatus(
            version=self._version,
            running=unfinished - waiting,
            waiting=waiting,
            kv_cache_share=counters.kv_cache_share if unfinished else 0.0,
            preemptions=counters.preemptions,
            prefix_hit_share=counters.prefix_hits / max(1, counters.prefix_queries),
            generated_tokens=counters.generated_tokens,
            prompt_tokens=counters.prompt_tokens,
            in_flight_tokens=self._account.in_flight,
            discarded_tokens=self._account.discarded,
            scored_tokens=self._account.scored,
        )

    async def close(self) -> None:
        """Kill the engine's processes; calls in flight fail with `EngineDied`."""
        await self._process.close()
        if self._updating is not None:
            await asyncio.wait([self._updating])

    @property
    def _swap(self) -> Swap:
        return Swap(self._process, recompute=self._params.kv_on_update == "recompute")

    async def _update(self, manifest: WeightsManifest) -> UpdateReport:
        swap = self._swap
        try:
            fetch_s = await swap.stage(manifest)
            self._served.clear()
            pause_s, load_s, loaded = await swap.apply(manifest)
            error = await self._prove(manifest)
            self._version = manifest.version
        except BaseException:
            if not self._served.is_set():
                self._process.kill(f"it could not take up version {manifest.version}")
            raise
        finally:
            self._served.set()
        return UpdateReport(manifest.version, True, fetch_s, pause_s, load_s, error, loaded)

    async def _prove(self, manifest: WeightsManifest) -> float:
        """How far the engine is from the manifest's probe, in nats."""
        scored = await self._score(manifest.probe.token_ids, PROBE_PRIORITY)
        error = probe_difference(scored, manifest.probe.logprobs)
        limit = probe_tolerance(self._params.dtype, manifest.probe.dtype or manifest.dtype)
        if not error <= limit:
            refusal = ProbeNotReproduced(
                f"the engine does not reproduce the probe of version {manifest.version}: log-probabilities differ by "
                f"{error:.2g} nats, {limit:.2g} is allowed: its weights are not the trainer's"
            )
            refusal.difference_nats = error
            raise refusal
        return error

    async def _score(self, token_ids: Sequence[int], priority: int) -> tuple[float, ...]:
        ids = tuple(token_ids)
        if len(ids) < 2:
            return ()
        self._check_prompt(ids, 1)
        output = await self._process.call(self._run_score(ids, priority), "a score", self._params.request_deadline_s)
        return tuple(output.prompt_logprobs[n][ids[n]].logprob for n in range(1, len(ids)))

    async def _run_score(self, ids: tuple[int, ...], priority: int) -> Any:
        with self._account.request(scored=True) as counted:
            return await self._run_request(
                ids, scoring(), counted, salt=f"score-{next(self._ids)}", priority=priority
            )

    async def _run_request(
        self, ids: tuple[int, ...], how: Any, counted: Request, *, salt: str, priority: int
    ) -> Any:
        """The finished output of one request."""
        self._process.check_alive()
        request_id = f"r{next(self._ids)}"
        self._counted[request_id] = counted
        # The rendered form spares vLLM a hop through its renderer's thread.
        prompt = {"type": "token", "prompt_token_ids": list(ids), "cache_salt": salt}
        finished = None
        try:
            async for output in self._process.llm.generate(prompt, how, request_id, priority=priority):
                finished = output
        except Exception as error:
            raise self._process.translated(error) from error
        finally:
            del self._counted[request_id]
        return finished

    async def _open(self) -> None:
        """Wait while the weights are being swapped and proven."""
        if not self._served.is_set():
            await self._served.wait()
        self._process.check_alive()

    def _check_prompt(self, ids: tuple[int, ...], max_tokens: int) -> None:
        """Refuse what would end the engine: without a tokenizer vLLM does not look at the ids."""
        if not ids or min(ids) < 0 or max(ids) >= self._vocabulary:
            raise ConfigurationError(
                f"the prompt is empty, or has token ids outside of the model's {self._vocabulary}: the tokenizer "
                "must be the model's own"
            )
        if len(ids) + max_tokens > self._params.max_model_len:
            raise ConfigurationError(
                f"{len(ids)} prompt tokens and max_tokens {max_tokens} exceed the context of "
                f"{self._params.max_model_len}: raise engine.max_model_len"
            )

    def _build(self) -> Any:
        llm, self._counters = build(self._params, self._model_dir)
        count_requests(llm, self._counted)
        return llm

    def _check_manifest(self, manifest: WeightsManifest) -> None:
        if manifest.run != self._run:
            raise WeightUpdateFailed(
                f"version {manifest.version} belongs to run {manifest.run!r}, this engine serves {self._run!r}"
            )
        if len(manifest.probe.token_ids) < 2:
            raise WeightUpdateFailed(f"version {manifest.version} has no probe: it could not be proven")
        self._check_prompt(manifest.probe.token_ids, 1)


def _note_failure(update: asyncio.Task[UpdateReport]) -> None:
    if not update.cancelled() and update.exception() is not None:
        logger.error("%s", update.exception())
