"""Makes the engines that servers host in tests."""

from __future__ import annotations

from pathlib import Path

from driftline.engine.scripted import ScriptedEngine
from driftline.params import EngineParameters, Settings

SLOW = f"{__name__}:slow"


def slow(parameters: EngineParameters, model_dir: Path, run: str, settings: Settings) -> ScriptedEngine:
    """Slow enough that a client sees requests run."""
    return ScriptedEngine(max_model_len=parameters.max_model_len, max_num_seqs=parameters.max_num_seqs, step_s=0.002)


BROKEN = f"{__name__}:broken"


def broken(parameters: EngineParameters, model_dir: Path, run: str, settings: Settings) -> ScriptedEngine:
    """Does not start."""
    engine = ScriptedEngine()
    engine.die("its GPU is gone")
    return engine
