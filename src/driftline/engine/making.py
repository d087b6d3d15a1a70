"""Engines from their parameters. Imports vllm only when an engine that needs it is made."""

from __future__ import annotations

import json
from pathlib import Path

from driftline.engine.pool import EnginePool
from driftline.engine.protocol import Engine
from driftline.engine.routing import RoutingBounds
from driftline.errors import ConfigurationError
from driftline.params import EngineParameters, Settings

SPILL_SHARE = 0.25
"""A prefix may cost an engine this share of its sequences more than the least loaded one has."""


def make_engines(parameters: EngineParameters, model_dir: Path, run: str, settings: Settings | None = None) -> Engine:
    """Make the engine that the parameters name, or several as one; not started yet.

    Args:
        parameters: The engine's parameters.
        model_dir: The model directory it starts from.
        run: The run whose weights it serves.
        settings: Where the store is; None is this process's own.
    """
    if parameters.replicas == 1:
        return make_one_engine(parameters, model_dir, run, settings)
    capacity = parameters.max_num_seqs
    return EnginePool(
        lambda index: make_one_engine(parameters, model_dir, run, settings, index=index),
        parameters.replicas,
        bounds=RoutingBounds(capacity, max(1, int(capacity * SPILL_SHARE))),
        stall_s=parameters.request_deadline_s / 2,
    )


def make_one_engine(
    parameters: EngineParameters, model_dir: Path, run: str, settings: Settings | None = None, *, index: int = 0
) -> Engine:
    """Make one engine, whatever the number of replicas; it is the `index`-th."""
    if parameters.backend == "scripted":
        from driftline.engine.scripted import ScriptedEngine

        return ScriptedEngine(
            vocabulary=_vocabulary(model_dir),
            max_model_len=parameters.max_model_len,
            max_num_seqs=parameters.max_num_seqs,
        )
    if parameters.backend == "vllm_server":
        from driftline.engine.served import ServedEngine

        return ServedEngine(parameters, model_dir, run=run, settings=settings, index=index)
    from driftline.engine.vllm_engine import VllmEngine

    return VllmEngine(parameters, model_dir, run=run, settings=settings)


def _vocabulary(model_dir: Path) -> int:
    path = model_dir / "config.json"
    if not path.is_file():
        raise ConfigurationError(f"{model_dir} is no model directory: it has no config.json")
    return int(json.loads(path.read_text())["vocab_size"])
