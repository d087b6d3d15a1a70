# pyright: basic
"""The weight-transfer backend inside vLLM's workers: weights come from the store, not from the trainer.

This module is imported in every worker process, because the engine names `WeightExtension` as
`worker_extension_cls`; that registers the backend `BACKEND`.

    driftline_stage(manifest)      a thread fetches, assembles, verifies and plans, beside generation
    driftline_stage_state(version) "loading" | "ready" | "failed"
    [the engine is paused]
    driftline_swap(version)        vLLM's own three steps, in one round trip:
        start_weight_update()          layers get their loaders back (kernels fuse and repack the weights)
        update_weights({"version"})    changed elements set in place, changed layers loaded: see `weights.loading`
        finish_weight_update()         layers are repacked; the tied output head is repacked by hand
    [the engine goes on]

The worker keeps one host copy of the version it holds, which the next delta changes in place while it is staged; the
model's own tensors are touched only in the swap. After a swap that failed the copy is dropped, and the next try
loads everything, from the anchor on.

Under tensor parallelism every worker stages the whole version in host memory, nothing is set in place, and
`load_weights` takes its shard; a multi-GPU machine has not run this. On a GPU the copy to the device lies inside the
pause.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field
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
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from driftline.errors import CorruptObject
from driftline.params import Settings
from driftline.records import PolicyVersion, WeightsManifest, decode
from driftline.store.client import open_store
from driftline.weights.assemble import Assembled, assemble_onto, check_fit
from driftline.weights.checkpoint import OUTPUT_HEAD, read_model_directory
from driftline.weights.loading import LoadPlan, in_place_parameters, plan_load, set_in_place
from driftline.weights.lora import BaseModel, check_adapters, targets
from driftline.weights.tensors import HeldWeights
from driftline.weights.vllm_seeds import keep_seeded_draws_on_cpu

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

    version: PolicyVersion
    state: str = "loading"
    error: str = ""
    seconds: float = 0.0
    loaded: PolicyVersion | None = None
    """What the model must hold for the plan to be right; None: anything."""
    plan: LoadPlan = field(default_factory=lambda: LoadPlan({}, ()))
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The tensors of the plan."""
    report: dict[str, int] = field(default_factory=dict)


class StoreWeightEngine(WeightTransferEngine[StoreInitInfo, StoreUpdateInfo]):
    """Holds at most one staged version, and loads it when the engine is paused."""

    init_info_cls, update_info_cls = StoreInitInfo, StoreUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._run = ""
        self._store: Any = None
        self._staging: _Staging | None = None
        self._held: HeldWeights | None = None
        self._loaded: PolicyVersion | None = None
        """The version that all of the model's tensors are of; None where that is not known."""
        self._padded: set[str] | None = None
        """Modules that a load of all tensors leaves with elements that no tensor fills."""
        self._directory = read_model_directory(Path(vllm_config.model_config.model))
        self._base: BaseModel | None = None
        alone = vllm_config.parallel_config.tensor_parallel_size == 1
        self._in_place = in_place_parameters(model, self._directory.shapes) if alone else {}

    def init_transfer_engine(self, init_info: StoreInitInfo) -> None:
        """Open the store; the model keeps its weights, of which nothing is known."""
        self._run = init_info.run
        self._staging = self._held = self._loaded = None
        self._store = open_store(Settings(**init_info.settings))

    def stage(self, manifest_json: str) -> None:
        """Begin to fetch a version, in place of any other that is staged.

        Raises:
            CorruptObject: The manifest is another run's, of a newer format, or no manifest.
        """
        manifest = decode(WeightsManifest, manifest_json.encode(), key="the manifest")
        if manifest.run != self._run:
            raise CorruptObject(f"the manifest belongs to run {manifest.run!r}, this engine serves {self._run!r}")
        self._staging = _Staging(manifest.version)
        # The thread changes what is held: nobody else may use it meanwhile.
        held, self._held = self._held, None
        threading.Thread(target=self._fetch, args=(self._staging, manifest, held), name="stage", daemon=True).start()

    def stage_state(self, version: str) -> dict[str, Any]:
        """How far a version is: `state`, `error` (when failed) and the `seconds` it took."""
        staging = self._staging
        if staging is None or str(staging.version) != version:
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
        """Set the changed elements, and hand the tensors of changed layers to the model's loader."""
        staging, loaded = self._staging, self._loaded
        self._loaded = None
        if staging is None or str(staging.version) != update_info.version or staging.state != "ready":
            raise RuntimeError(f"version {update_info.version} is not staged")
        if staging.loaded not in (None, loaded):
            raise RuntimeError(f"version {update_info.version} was staged onto {staging.loaded}, {loaded} is loaded")
        for name, indices in staging.plan.in_place.items():
            set_in_place(self._in_place[name], staging.tensors[name], indices)
        if staging.plan.whole:
            load_weights: Any = self.model.load_weights
            load_weights((name, staging.tensors[name]) for name in staging.plan.whole)
        self._check_layers_are_whole(everything=staging.loaded is None)

    def finish_weight_update(self) -> None:
        """Repack the layers. With tied embeddings vLLM would keep the old packed output head, silently."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        method = getattr(head, "quant_method", None)
        if self._directory.tied_embeddings and method is not None:
            method.process_weights_after_loading(head)

    def swap_done(self) -> dict[str, int]:
        """The staged version is loaded; returns what that took."""
        staging, self._staging = self._staging, None
        assert staging is not None
        self._loaded = staging.version
        return staging.report

    def swap_failed(self) -> None:
        """The model holds nobody knows what: the next version is assembled anew, and all of it loaded."""
        self._staging = self._held = self._loaded = None

    def shutdown(self) -> None:
        """Forget what is staged and held."""
        self._staging = self._held = None

    def _fetch(self, staging: _Staging, manifest: WeightsManifest, held: HeldWeights | None) -> None:
        started = time.monotonic()
        try:
            before = held.manifest if held is not None else None
            found = assemble_onto(self._store, manifest, held)
            # Adapters of a base model say nothing of weights that were loaded in its place.
            follows = before is not None and before.version == self._loaded and before.adapter == manifest.adapter
            self._plan(staging, found, onto=self._loaded if follows else None)
            if self._staging is staging:
                self._held = found.held
            staging.seconds = time.monotonic() - started
            staging.state = "ready"
        except Exception as error:
            logger.exception("staging version %s failed", manifest.version)
            staging.error = f"{type(error).__name__}: {error}"
            staging.state = "failed"

    def _plan(self, staging: _Staging, found: Assembled, onto: PolicyVersion | None) -> None:
        """Decide what to load, and have its tensors at hand."""
        manifest, tensors = found.held.manifest, dict(found.held.tensors)
        shapes, adapter = self._directory.shapes, manifest.adapter
        if adapter is None:
            if self._directory.tied_embeddings:
                tensors.pop(OUTPUT_HEAD, None)
            check_fit(tensors, shapes, manifest)
            changed = {name: indices for name, indices in found.changed.items() if name in tensors}
        else:
            check_adapters(tensors, shapes, manifest)
            changed = dict.fromkeys(targets(found.changed))
        staging.loaded = onto
        staging.plan = plan_load(changed if onto else dict.fromkeys(shapes), tuple(shapes), self._in_place)
        wanted = [*staging.plan.in_place, *staging.plan.whole]
        if adapter is None:
            staging.tensors = {name: tensors[name] for name in wanted}
        else:
            self._base = self._base or BaseModel(self._directory.path)
            staging.tensors = {name: self._base.with_adapters(name, tensors, adapter) for name in wanted}
        staging.report = _report(found, staging)

    def _check_layers_are_whole(self, *, everything: bool) -> None:
        """See that no layer got only some of its tensors: vLLM would make up the rest.

        Layers with padding are never full; which these are shows when everything is loaded.
        """
        partial: set[str] = set()
        for name, module in self.model.named_modules():
            info = get_layerwise_info(module)
            if info.can_load() and 0 < info.load_numel < (info.load_numel_total or 0):
                partial.add(name)
        if everything:
            self._padded = partial
        elif not partial <= (self._padded or set()):
            raise RuntimeError(f"{min(partial - (self._padded or set()))} would be loaded in part")


def _report(found: Assembled, staging: _Staging) -> dict[str, int]:
    tensors = staging.tensors
    rows = sum(indices.size * tensors[name].element_size() for name, indices in staging.plan.in_place.items())
    held = found.held.tensors
    changed = (held[name].numel() if indices is None else indices.size for name, indices in found.changed.items())
    return {
        "changed_elements": sum(changed),
        "loaded_bytes": rows + sum(tensors[name].nbytes for name in staging.plan.whole),
        "model_bytes": sum(tensor.nbytes for tensor in held.values()),
        "deltas": found.deltas,
    }


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

    def driftline_swap(self, version: str) -> dict[str, float]:
        """Load a staged version; the engine must be paused. Returns the `seconds` it took, and what was loaded."""
        started = time.monotonic()
        worker: Any = self
        try:
            worker.start_weight_update()
            worker.update_weights({"version": version})
            worker.finish_weight_update()
        except BaseException:
            # A session that failed in its last step would stay open, and refuse the next try.
            worker._weight_update_active = False
            self.weight_transfer_engine.swap_failed()
            raise
        report = self.weight_transfer_engine.swap_done()
        return {**report, "seconds": time.monotonic() - started}

    def driftline_follow_parent(self) -> bool:
        """End this process when the one that started it is gone, however it went."""
        parent = os.getppid()
        threading.Thread(target=_follow, args=(parent,), name="follow-parent", daemon=True).start()
        return True


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


# It warns, at each update, of layers without weights (rotary embeddings). That no weight is missing is held by
# `check_fit`, before anything is loaded.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
keep_seeded_draws_on_cpu()
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, StoreWeightEngine)
