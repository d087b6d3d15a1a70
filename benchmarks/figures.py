"""How every benchmark gives its figures: as a table or as JSON on stdout, and with `--json PATH` in a file."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def cell(value: Any) -> str:
    """A value in a table: three decimals of a float, a dash for None."""
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def markdown_table(
    columns: Iterable[tuple[str, str]], rows: Sequence[Mapping[str, Any]], shown: Callable[[Any], str] = cell
) -> str:
    """The rows as a Markdown table.

    Args:
        columns: The title of each, and its key in a row.
        rows: What it shows.
        shown: A value as text.
    """
    titles, keys = zip(*columns, strict=True)
    lines = [titles, ["---"] * len(titles), *([shown(row[key]) for key in keys] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(figures: Any) -> str:
    return json.dumps(figures, indent=2) + "\n"
