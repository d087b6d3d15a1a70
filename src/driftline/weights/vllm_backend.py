# pyright: basic
"""The weight-transfer backend inside vLLM's workers: weights come from the store, not from the trainer.

This module is imported in every worker process, because the engine names `WeightExtension` as
`worker_extension_cls`; that registers the backend `BACKEND`.

    driftline_stage(manifest)      a thread fetches, verifies and casts, beside generation
    driftline_stage_state(version) "loading" | "ready" | "failed"
    [the engine is paused]
    driftline_swap(version)        vLLM's own three steps, in one round trip:
        start_weight_update()          layers get their loaders back (kernels fuse and repack the weights)
        update_weights({"version"})    loads what is staged
        finish_weight_update()         layers are repacked; the tied output head is repacked by hand
    [the engine goes on]

Under tensor parallelism every worker stages the whole version in host memory, and `load_weights` takes its
shard; a multi-GPU machine has not run this. On a GPU the copy to the device lies inside the pause.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from driftline.errors import CorruptObject
from driftline.params import Settings
from driftline.records import WeightsManifest, decode
from driftline.store.client import open_store
from driftline.weights.assemble import assemble, check_fit, in_dtype
from driftline.weights.checkpoint import OUTPUT_HEAD, read_model_directory

logger = logging.getLogger(__name__)

BACKEND = "driftline_store"
PARENT_POLL_S = 1.0


@dataclass
class StoreInitInfo(WeightTransferInitInfo):
    """Which run's weights, and where the store is (`Settings` as JSON; credentials stay in the environment)."""

    run: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class StoreUpdateInfo(WeightTransferUpdateInfo):
    """Which staged version to load."""

    version: str = ""


@dataclass
class _Staging:
    """One version on its way into host memory. Written by its thread, read by the worker."""

    version: str
    state: str = "loading"
    error: str = ""
    seconds: float = 0.0
    tensors: dict[str, Tensor] | None = None


class StoreWeightEngine(WeightTransferEngine[StoreInitInfo, StoreUpdateInfo]):
    """Holds at most one staged version, and loads it when the engine is paused."""

    init_info_cls, update_info_cls = StoreInitInfo, StoreUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._run = ""
        self._store: Any = None
        self._staging: _Staging | None = None
        self._directory = read_model_directory(Path(vllm_config.model_config.model))

    def init_transfer_engine(self, init_info: StoreInitInfo) -> None:
        """Open the store; touches nothing yet."""
        self._run = init_info.run
        self._store = open_store(Settings(**init_info.settings))

    def stage(self, manifest_json: str) -> None:
        """Begin to fetch a version, in place of any other that is staged.

        Raises:
            CorruptObject: The manifest is another run's, of a newer format, or no manifest.
        """
        manifest = decode(WeightsManifest, manifest_json.encode(), key="the manifest")
        if manifest.run != self._run:
            raise CorruptObject(f"the manifest belongs to run {manifest.run!r}, this engine serves {self._run!r}")
        self._staging = _Staging(str(manifest.version))
        threading.Thread(target=self._fetch, args=(self._staging, manifest), name="stage", daemon=True).start()

    def stage_state(self, version: str) -> dict[str, Any]:
        """How far a version is: `state`, `error` (when failed) and the `seconds` it took."""
        staging = self._staging
        if staging is None or staging.version != version:
            return {"state": "failed", "error": f"version {version} is not being staged", "seconds": 0.0}
        return {"state": staging.state, "error": staging.error, "seconds": staging.seconds}

    def start_weight_update(self) -> None:
        """Make the layers loadable again."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the staged version. Loading is synchronous, on CPUs too: there is no device to wait for there."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: StoreUpdateInfo) -> None:
        """Hand the staged tensors to the model's loader."""
        staging, self._staging = self._staging, None
        if staging is None or staging.version != update_info.version or staging.tensors is None:
            raise RuntimeError(f"version {update_info.version} is not staged")
        load_weights: Any = self.model.load_weights
        load_weights(iter(staging.tensors.items()))

    def finish_weight_update(self) -> None:
        """Repack the layers. With tied embeddings vLLM would keep the old packed output head, silently."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        method = getattr(head, "quant_method", None)
        if self._directory.tied_embeddings and method is not None:
            method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Forget what is staged."""
        self._staging = None

    def _fetch(self, staging: _Staging, manifest: WeightsManifest) -> None:
        started = time.monotonic()
        try:
            tensors = assemble(self._store, manifest)
            if self._directory.tied_embeddings:
                tensors.pop(OUTPUT_HEAD, None)
            check_fit(tensors, self._directory.shapes, manifest)
            staging.tensors = in_dtype(tensors, self.model_config.dtype)
            staging.seconds = time.monotonic() - started
            staging.state = "ready"
        except Exception as error:
            logger.exception("staging version %s failed", manifest.version)
            staging.error = f"{type(error).__name__}: {error}"
            staging.state = "failed"


class WeightExtension:
    """Mixed into vLLM's worker; reached through `collective_rpc`. Its names must not clash with the worker's."""

    weight_transfer_engine: StoreWeightEngine

    def driftline_stage(self, manifest_json: str) -> str:
        """Begin to stage a version; returns the error as text, or nothing."""
        try:
            self.weight_transfer_engine.stage(manifest_json)
        except CorruptObject as error:
            return str(error)
        return ""

    def driftline_stage_state(self, version: str) -> dict[str, Any]:
        """See `StoreWeightEngine.stage_state`."""
        return self.weight_transfer_engine.stage_state(version)

    def driftline_swap(self, version: str) -> float:
        """Load a staged version; the engine must be paused. Returns the seconds it took."""
        started = time.monotonic()
        worker: Any = self
        try:
            worker.start_weight_update()
            worker.update_weights({"version": version})
            worker.finish_weight_update()
        except BaseException:
            # A session that failed in its last step would stay open, and refuse the next try.
            worker._weight_update_active = False
            raise
        return time.monotonic() - started

    def driftline_follow_parent(self) -> bool:
        """End this process when the one that started it is gone, however it went."""
        parent = os.getppid()
        threading.Thread(target=_follow, args=(parent,), name="follow-parent", daemon=True).start()
        return True


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _keep_seeded_draws_on_cpu() -> None:
    """Mend seeded sampling on CPUs where a prompt is cut into chunks, or recomputed in part.

    vLLM samples a token for the unfinished chunk too, discards it, and turns the request's generator back by
    `set_offset`, which CPU generators do not have: the engine dies. Here the state of such a generator is
    saved before sampling and restored after it, and the generator is hidden from the code that would turn it.
    Does nothing on other platforms, nor where vLLM no longer does that.
    """
    sample, bookkeep = GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync
    if not current_platform.is_cpu() or "set_offset" not in inspect.getsource(bookkeep):
        return

    def discarded(runner: Any) -> dict[int, torch.Generator]:
        held = runner.input_batch.generators
        if not held:
            return {}
        rows = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0]
        return {int(row): held[int(row)] for row in rows if int(row) in held}

    @wraps(sample)
    def sample_keeping_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in discarded(self).values()]
        try:
            return sample(self, *args, **kwargs)
        finally:
            for generator, state in states:
                generator.set_state(state)

    @wraps(bookkeep)
    def bookkeep_without_discarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        hidden = discarded(self)
        for row in hidden:
            del self.input_batch.generators[row]
        try:
            return bookkeep(self, *args, **kwargs)
        finally:
            self.input_batch.generators.update(hidden)

    GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync = sample_keeping_state, bookkeep_without_discarded


# It warns, at each update, of layers without weights (rotary embeddings). That no weight is missing is held by
# `check_fit`, before anything is loaded.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
_keep_seeded_draws_on_cpu()
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, StoreWeightEngine)
