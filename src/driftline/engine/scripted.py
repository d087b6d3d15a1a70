"""A stand-in for a generation engine, for tests of the machinery around it: seeded, quick, and able to fail.

It works like the real one: running requests advance together, one token a step; at most `max_num_seqs` run, the
others wait by priority, and what its cache cannot hold (`bears`) is preempted; an update pauses the steps for the
swap alone. Its policy is a distribution over the next token drawn from a hash of (policy version, last token), so
that log-probabilities are true ones, `score` reproduces them, and another version has others. A `script` replaces
the draw: it maps a request to its tokens.

Faults, on demand: `die`, `hang`, `refuse_updates`; a script that returns fewer tokens than asked for makes the
engine abort that request.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from random import Random
from typing import Literal

from driftline.engine.protocol import EngineStatus, Generation, GenerationRequest, UpdateReport
from driftline.engine.token_account import TokenAccount
from driftline.errors import ConfigurationError, EngineDied, EngineStartFailed, WeightUpdateFailed
from driftline.records import PolicyVersion, Segment, WeightsManifest

Script = Callable[[GenerationRequest], Sequence[int]]
FinishReason = Literal["stop", "length", "abort"]

UNVERSIONED = -1
"""Version number of tokens sampled before the first update."""
LOGIT_SCALE = 1.5


@dataclass(frozen=True, slots=True)
class _Distribution:
    cumulative_V: tuple[float, ...]
    logprobs_V: tuple[float, ...]


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request on its way."""

    request: GenerationRequest
    answer: asyncio.Future[Generation]
    rng: Random
    script: Sequence[int] | None
    submitted: float
    started: float = 0.0
    first_token: float = 0.0
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    segments: list[Segment] = field(default_factory=list[Segment])

    @property
    def last_token(self) -> int:
        return self.token_ids[-1] if self.token_ids else self.request.prompt_ids[-1]


class ScriptedEngine:
    """Implements `Engine` without a model."""

    def __init__(
        self,
        *,
        vocabulary: int = 43,
        max_model_len: int = 256,
        max_num_seqs: int = 128,
        bears: int | None = None,
        script: Script | None = None,
        step_s: float = 0.0,
        fetch_s: float = 0.0,
        pause_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._bears = max_num_seqs if bears is None else bears
        self._preemptions = 0
        self._script = script
        self._step_s, self._fetch_s, self._pause_s = step_s, fetch_s, pause_s
        self._clock = clock
        self._version: PolicyVersion | None = None
        self._running: list[_Sequence] = []
        self._waiting: list[_Sequence] = []
        self._work = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._steps: asyncio.Task[None] | None = None
        self._dead: str | None = None
        self._hanging = False
        self._refuse_updates = False
        self._cuts_turns = False
        self._generated_tokens = 0
        self._prompt_tokens = 0
        self._account = TokenAccount()

    async def start(self) -> None:
        """Begin stepping."""
        if self._dead is not None:
            raise EngineStartFailed(f"the scripted engine does not start again: {self._dead}")
        if self._steps is None:
            self._steps = asyncio.create_task(self._step_forever(), name="scripted-engine")

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn, together with the other requests."""
        self._check_alive()
        self._check_request(request)
        script = self._script(request) if self._script else None
        answer = asyncio.get_running_loop().create_future()
        sequence = _Sequence(request, answer, Random(request.seed), script, self._clock())
        self._waiting.append(sequence)
        self._prompt_tokens += len(request.prompt_ids)
        self._work.set()
        with self._account.request() as counted:
            counted.sampled = sequence.token_ids.__len__
            try:
                return await answer
            finally:
                self._forget(sequence)

    async def update(self, manifest: WeightsManifest) -> UpdateReport:
        """Take up a version: the steps pause for `pause_s`, after `fetch_s` beside them."""
        self._check_alive()
        if manifest.version == self._version:
            return UpdateReport(manifest.version, False, 0.0, 0.0, 0.0, 0.0)
        await asyncio.sleep(self._fetch_s)
        self._check_alive()
        if self._refuse_updates:
            raise WeightUpdateFailed(f"the scripted engine was told to refuse version {manifest.version}")
        before = self._clock()
        self._resumed.clear()
        try:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            self._version = manifest.version
        finally:
            self._resumed.set()
        pause_s = self._clock() - before
        return UpdateReport(manifest.version, True, self._fetch_s, pause_s, pause_s, 0.0)

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities (nats, temperature 1) of `token_ids[1:]` under the version held."""
        self._check_alive()
        pairs = pairwise(token_ids)
        return tuple(self._distribution(before, 1.0).logprobs_V[token] for before, token in pairs)

    def status(self) -> EngineStatus:
        """Counters and gauges."""
        return EngineStatus(
            version=self._version,
            running=len(self._running),
            waiting=len(self._waiting),
            kv_cache_share=min(1.0, len(self._running) / self._bears),
            preemptions=self._preemptions,
            prefix_hit_share=0.0,
            generated_tokens=self._generated_tokens,
            prompt_tokens=self._prompt_tokens,
            in_flight_tokens=self._account.in_flight,
            discarded_tokens=self._account.discarded,
            scored_tokens=self._account.scored,
        )

    async def close(self) -> None:
        """Stop stepping; requests in flight fail."""
        self.die("it was closed")
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.cancel()
            await asyncio.wait([steps])

    def die(self, reason: str = "it was told to die") -> None:
        """From now on be gone: everything in flight fails with `EngineDied`."""
        if self._dead is None:
            self._dead = reason
        for sequence in [*self._running, *self._waiting]:
            if not sequence.answer.done():
                sequence.answer.set_exception(EngineDied(f"the scripted engine is gone: {self._dead}"))
        self._running.clear()
        self._waiting.clear()

    def hang(self) -> None:
        """From now on make no token, and no error either."""
        self._hanging = True

    def cut_turns(self) -> None:
        """From now on end turns after one token, as if no more had been asked for."""
        self._cuts_turns = True

    def refuse_updates(self) -> None:
        """From now on fail every update."""
        self._refuse_updates = True

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDied(f"the scripted engine is gone: {self._dead}")

    def _check_request(self, request: GenerationRequest) -> None:
        if len(request.prompt_ids) + request.max_tokens > self._max_model_len:
            raise ConfigurationError(
                f"{len(request.prompt_ids)} prompt tokens and max_tokens {request.max_tokens} exceed the context of "
                f"{self._max_model_len}: raise engine.max_model_len"
            )
        if request.top_p < 1.0 or request.top_k > 0:
            raise ConfigurationError("the scripted engine has no top_p or top_k: set them to 1 and 0")

    def _forget(self, sequence: _Sequence) -> None:
        for queue in (self._running, self._waiting):
            if sequence in queue:
                queue.remove(sequence)

    async def _step_forever(self) -> None:
        while True:
            await self._work.wait()
            await asyncio.sleep(self._step_s)
            await self._resumed.wait()
            if not self._hanging:
                self._admit()
                for sequence in list(self._running):
                    self._advance(sequence)
                self._preempt()
            if self._hanging or not (self._running or self._waiting):
                self._work.clear()

    def _admit(self) -> None:
        self._waiting.sort(key=lambda sequence: sequence.request.priority)
        free = self._max_num_seqs - len(self._running)
        for sequence in self._waiting[:free]:
            sequence.started = self._clock()
            self._running.append(sequence)
        del self._waiting[:free]

    def _preempt(self) -> None:
        """Put back what was begun last, where the cache does not hold it; it goes on later."""
        beyond = self._running[self._bears :]
        del self._running[self._bears :]
        self._waiting += beyond
        self._preemptions += len(beyond)

    def _advance(self, sequence: _Sequence) -> None:
        """Sample one token of a running request, and answer it if that was the last."""
        index, script = len(sequence.token_ids), sequence.script
        if script is not None and index >= len(script):
            self._finish(sequence, "abort")
            return
        request = sequence.request
        distribution = self._distribution(sequence.last_token, request.temperature)
        token = script[index] if script is not None else self._draw(distribution, sequence.rng, request.temperature)
        version = self._version.number if self._version else UNVERSIONED
        if not sequence.segments or sequence.segments[-1].version != version:
            sequence.segments.append(Segment(index, version))
        if index == 0:
            sequence.first_token = self._clock()
        sequence.token_ids.append(token)
        sequence.logprobs.append(distribution.logprobs_V[token])
        self._generated_tokens += 1
        if token in request.stop_ids:
            self._finish(sequence, "stop")
        elif index + 1 == request.max_tokens or self._cuts_turns:
            self._finish(sequence, "length")

    def _finish(self, sequence: _Sequence, reason: FinishReason) -> None:
        self._running.remove(sequence)
        if sequence.answer.done():
            return
        now = self._clock()
        first_token = sequence.first_token or now
        sequence.answer.set_result(
            Generation(
                tuple(sequence.token_ids),
                tuple(sequence.logprobs),
                tuple(sequence.segments),
                reason,
                queued_s=sequence.started - sequence.submitted,
                prefill_s=first_token - sequence.started,
                decode_s=now - first_token,
            )
        )

    def _distribution(self, last_token: int, temperature: float) -> _Distribution:
        version = self._version.number if self._version else UNVERSIONED
        return _next_token(self._vocabulary, version, last_token, temperature or 1.0)

    @staticmethod
    def _draw(distribution: _Distribution, rng: Random, temperature: float) -> int:
        if temperature == 0.0:
            return max(range(len(distribution.logprobs_V)), key=distribution.logprobs_V.__getitem__)
        return min(bisect(distribution.cumulative_V, rng.random()), len(distribution.cumulative_V) - 1)


@lru_cache(maxsize=8192)
def _next_token(vocabulary: int, version: int, last_token: int, temperature: float) -> _Distribution:
    rng = Random(f"{version}:{last_token}")
    scaled_V = [rng.gauss(0.0, LOGIT_SCALE) / temperature for _ in range(vocabulary)]
    log_total = math.log(sum(math.exp(value) for value in scaled_V))
    logprobs_V = tuple(value - log_total for value in scaled_V)
    return _Distribution(tuple(accumulate(math.exp(value) for value in logprobs_V)), logprobs_V)
