"""A quicker start: transformers without scikit-learn.

For one metric of assisted generation transformers imports scikit-learn wherever it is installed, and with it scipy
and pandas: a third of the time that a trainer takes to start.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def import_transformers() -> None:
    """Import transformers' part that wants scikit-learn, as if that were not installed. Nobody else notices."""
    modules: dict[str, Any] = sys.modules
    if "sklearn" in modules or "transformers.generation.candidate_generator" in modules:
        return
    modules["sklearn"] = None
    try:
        importlib.import_module("transformers.generation.candidate_generator")
    finally:
        del modules["sklearn"]
