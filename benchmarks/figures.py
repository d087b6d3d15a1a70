"""How every benchmark gives its figures: with `--json PATH` in a file, and where it prints no table, on stdout."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any


def log_progress() -> None:
    """Log a benchmark's own progress on stderr, and of everything else errors alone."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    for noisy in ("driftline", "botocore", "vllm"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json PATH`."""
    parser.add_argument("--json", type=Path, default=None, help="file for the figures")


def write(figures: Any, path: Path | None) -> None:
    """Write the figures where that was asked for."""
    if path is not None:
        path.write_text(_text(figures))


def tell(figures: Any, path: Path | None) -> None:
    """Print the figures, and write them where that was asked for."""
    sys.stdout.write(_text(figures))
    write(figures, path)


def _text(figures: Any) -> str:
    return json.dumps(figures, indent=2) + "\n"
