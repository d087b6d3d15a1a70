"""What a published policy version consists of. Part of `records`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from driftline.codec import FORMAT


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """One published set of weights: its number, and the epoch of the trainer that published it."""

    number: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.number:06d}-{self.epoch:04d}"


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed token sequence and the log-probabilities the published policy gives it.

    `logprobs[i]` (nats, temperature 1) belongs to `token_ids[i + 1]` given `token_ids[: i + 1]`.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: Literal["float32", "bfloat16"] | None = None
    """Arithmetic of the forward pass that gave them; None is that of the manifest."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One object that belongs to a manifest: its key, its size in bytes and its SHA-256."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """How low-rank adapters become weights: `W + alpha / rank * B @ A`, with the base model's `W`."""

    rank: int
    alpha: float
    base: str
    """Digest of the base model (`ModelSource.digest`)."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What a reader without any version must fetch: an anchor, and the deltas after it up to this version."""

    anchor_bytes: int
    delta_bytes: int = 0
    deltas: int = 0


@dataclass(frozen=True, slots=True)
class WeightsManifest:
    """What a policy version consists of. Written after all of its files."""

    run: str
    version: PolicyVersion
    kind: Literal["anchor", "delta"]
    base: PolicyVersion | None
    """The version that a delta changes; None for an anchor."""
    files: tuple[FileEntry, ...]
    tensors: Mapping[str, str]
    """Tensor name -> SHA-256 of its assembled bytes, for every tensor of the version."""
    dtype: Literal["float32", "bfloat16"]
    probe: Probe
    created_unix: float
    elements: int = 0
    """Elements of all tensors."""
    changed_elements: int | None = None
    """Elements whose published bits differ from the version before; None where there is none to compare with."""
    chain: Chain | None = None
    adapter: AdapterLayout | None = None
    """Set where the tensors are adapters of the base model, not the model's own."""
    format: int = FORMAT
