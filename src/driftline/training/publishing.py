# pyright: basic
"""The trained policy, to the store: probe, weights, manifest."""

from __future__ import annotations

from random import Random

from driftline.errors import PublishRefused
from driftline.params import RunParameters
from driftline.records import AdapterLayout, PolicyVersion, Probe, WeightsManifest
from driftline.store.run_store import RunStore
from driftline.training.protocol import PolicyTrainer
from driftline.weights.publisher import NothingChanged, WeightsPublisher

PROBE_TOKENS = 64


def probe_ids(seed: int, vocabulary: int, max_model_len: int) -> tuple[int, ...]:
    """The run's fixed probe: pseudo-random token ids, `min(64, max_model_len // 2)` of them."""
    rng = Random(f"probe:{seed}")
    return tuple(rng.randrange(vocabulary) for _ in range(min(PROBE_TOKENS, max_model_len // 2)))


class PolicyPublisher:
    """Publishes the group's weights, which are the published ones already: where it must round, the group does."""

    def __init__(self, group: PolicyTrainer, run_store: RunStore, params: RunParameters) -> None:
        self._group = group
        self._params = params
        self._probe_ids = probe_ids(params.seed, group.vocabulary, params.engine.max_model_len)
        self._publisher = WeightsPublisher(
            run_store,
            dtype=params.published_dtype,
            tied_embeddings=group.tied_embeddings,
            adapter=adapter_layout(run_store, params),
            chain_factor=params.publication.chain_factor,
        )

    def adopt(self, manifest: WeightsManifest) -> bool:
        """Let the next version be a delta of one that another trainer published, if the group's weights are it."""
        return self._publisher.adopt(manifest, self._group.full_tensors())

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
        scores = tuple(self._group.score(self._probe_ids))
        try:
            return self._publisher.publish(
                self._group.full_tensors(),
                version=version,
                probe=Probe(self._probe_ids, scores, self._params.training.dtype),
                previous=previous,
                expect_change=expect_change,
            )
        except NothingChanged as error:
            raise PublishRefused(self._why_unchanged(version) or str(error)) from None

    def _why_unchanged(self, version: PolicyVersion) -> str:
        rate = f"training.learning_rate ({self._params.training.learning_rate:g})"
        match self._group.moved:
            case True:
                return (
                    f"rounding to {self._params.published_dtype} swallowed every update of the step to version "
                    f"{version}: {rate} is too small for these weights: raise it, or set publication.dtype to float32"
                )
            case False:
                return (
                    f"the optimizer changed no weight in the step to version {version}, although {rate} is positive: "
                    "are the published parameters frozen, or not the ones the optimizer updates?"
                )
            case None:
                return ""


def adapter_layout(run_store: RunStore, params: RunParameters) -> AdapterLayout | None:
    """How the run's adapters become weights; None where it trains all weights."""
    if params.lora.rank == 0:
        return None
    return AdapterLayout(params.lora.rank, params.lora.alpha, run_store.describe().model.digest)
