# pyright: basic
"""The trained policy, to the store: probe, weights, manifest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from driftline.params import RunParameters
from driftline.records import PolicyVersion, Probe, WeightsManifest
from driftline.store.run_store import RunStore
from driftline.training.protocol import PolicyTrainer
from driftline.weights.publisher import publish_anchor
from driftline.weights.tensors import DTYPES, DtypeName

if TYPE_CHECKING:
    from driftline.training.model import TokenScorer

PROBE_TOKENS = 64


def probe_ids(seed: int, vocabulary: int, max_model_len: int) -> tuple[int, ...]:
    """The run's fixed probe: pseudo-random token ids, `min(64, max_model_len // 2)` of them."""
    rng = Random(f"probe:{seed}")
    return tuple(rng.randrange(vocabulary) for _ in range(min(PROBE_TOKENS, max_model_len // 2)))


class PolicyPublisher:
    """Publishes the group's weights in the dtype that the engines serve.

    Where the trainer computes in another dtype, the probe is computed by a copy of the model in the published one.
    """

    def __init__(self, group: PolicyTrainer, run_store: RunStore, params: RunParameters, model_dir: Path) -> None:
        self._group = group
        self._run_store = run_store
        self._dtype: DtypeName = params.engine.dtype
        self._copy = None if self._dtype == params.training.dtype else _copy_in(self._dtype, model_dir)
        self._probe_ids = probe_ids(params.seed, group.vocabulary, params.engine.max_model_len)

    def publish(
        self, version: PolicyVersion, *, previous: WeightsManifest | None, expect_change: bool
    ) -> WeightsManifest:
        """Publish the weights as they are; returns the manifest. It counts once HEAD names it.

        Args:
            version: The version they become.
            previous: Manifest of the version before.
            expect_change: Whether they must differ from it.

        Raises:
            PublishRefused: They are unchanged although they should not be, or not finite.
        """
        probe, tensors = self._prepare()
        return publish_anchor(
            self._run_store,
            tensors,
            run=self._run_store.run,
            version=version,
            dtype=self._dtype,
            probe=probe,
            tied_embeddings=self._group.tied_embeddings,
            previous=previous,
            expect_change=expect_change,
        )

    def _prepare(self) -> tuple[Probe, Iterable[tuple[str, Tensor]]]:
        if self._copy is None:
            probe = Probe(self._probe_ids, tuple(self._group.score(self._probe_ids)))
            return probe, self._group.full_tensors()
        copies = dict(self._copy.model.named_parameters())
        with torch.no_grad():
            for name, tensor in self._group.full_tensors():
                copies[name].copy_(tensor)
            ids_BT = torch.tensor([self._probe_ids])
            columns_N = torch.arange(1, len(self._probe_ids))
            logprobs_N, _ = self._copy(ids_BT, torch.zeros_like(columns_N), columns_N)
        return Probe(self._probe_ids, tuple(logprobs_N.tolist())), copies.items()


def _copy_in(dtype: DtypeName, model_dir: Path) -> TokenScorer:
    from driftline.training.model import TokenScorer, open_model

    return TokenScorer(open_model(model_dir, DTYPES[dtype]))
