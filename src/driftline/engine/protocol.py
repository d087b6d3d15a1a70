"""What a generation engine does, whatever it is made of.

The contract suite `tests/contract/test_engine.py` runs over every implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from driftline.records import PolicyVersion, Segment, WeightsManifest


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn to sample.

    `prompt_ids` is the whole context. Sampling stops after a token of `stop_ids` (which is part of the result)
    or after `max_tokens`. `seed` makes the draw reproducible. Lower `priority` runs first. Without `reuse_prefix` the
    whole prompt is computed, whatever the engine holds of it.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0
    priority: int = 0
    affinity: tuple[str, ...] = ()
    """Names of what it shares a prefix with, the longest prefix first: its episode, its group."""
    reuse_prefix: bool = True


@dataclass(frozen=True, slots=True)
class Generation:
    """The sampled tokens of one turn.

    `logprobs` (nats) are those of the distribution sampled from. `segments` say which policy version sampled
    which tokens, indices counting from the first sampled token. Seconds are the engine's own measure.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    segments: tuple[Segment, ...]
    finish_reason: Literal["stop", "length", "abort"]
    queued_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How much of a version an engine had to load."""

    changed_elements: int
    """Published elements that differ from what the engine held before."""
    loaded_bytes: int
    """Bytes handed to the model: changed elements, and whole layers around them where kernels repack."""
    model_bytes: int
    """Bytes of the whole version."""
    deltas: int
    """Deltas applied to come to it."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update of the weights cost, in seconds. `applied` is false if the version was already there."""

    version: PolicyVersion
    applied: bool
    fetch_s: float
    pause_s: float
    load_s: float
    probe_error: float
    """Largest absolute difference, in nats, between the manifest's probe log-probabilities and the engine's."""
    loaded: LoadReport | None = None
    """What the pause was spent on, where the engine knows."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Counters and gauges of an engine; counters never fall within one incarnation."""

    version: PolicyVersion | None
    running: int
    waiting: int
    kv_cache_share: float
    preemptions: int
    prefix_hit_share: float
    generated_tokens: int
    """The engine's own counter of sampled tokens, scores and probes included."""
    prompt_tokens: int
    in_flight_tokens: int = 0
    """Sampled for calls of `generate` that have not returned. This and the two below are counted apart from
    `generated_tokens`; what is left of it was returned."""
    discarded_tokens: int = 0
    """Sampled for calls that were cancelled or failed."""
    scored_tokens: int = 0
    """Sampled for scores and probes, which ask for none."""
    engines: int = 1
    """Engines that serve, where there are several."""


class Engine(Protocol):
    """Samples from one policy, and takes up new weights while requests are in flight."""

    async def start(self) -> None:
        """Become ready to generate.

        Raises:
            EngineStartFailed: It did not, within its deadline; the message holds the end of its log.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn. Cancelling the call aborts the request in the engine.

        Raises:
            EngineDied: The engine is gone; every request in flight fails so.
            ConfigurationError: The prompt leaves no room in the context length, or cannot be sampled as asked.
            DeadlineExceeded: It was not finished within `engine.request_deadline_s`.
        """
        ...

    async def update(self, manifest: WeightsManifest) -> UpdateReport:
        """Take up a policy version. Requests in flight go on, their next tokens carry the new version.

        Fetching happens beside generation; only the swap pauses it. Applying the version that is held already
        changes nothing. On return the engine has reproduced the manifest's probe.

        Raises:
            WeightUpdateFailed: It does not hold the version. Either the old one serves on, untouched, or the engine
                has ended itself, and every request fails with `EngineDied`: half-applied weights are never served.
            EngineDied: The engine is gone.
        """
        ...

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities (nats, temperature 1) of `token_ids[1:]` given their prefixes."""
        ...

    def status(self) -> EngineStatus:
        """Counters and gauges, at once, without a round trip."""
        ...

    async def close(self) -> None:
        """End the engine and all of its processes. May be called at any time, more than once."""
        ...
