"""The results of a benchmark so far, in the file that `--state` names: what is in it is not measured again.

The file is a JSON object: what was chosen for all results, and the results by place, `<arm>/<seed>` in a study.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

Result = Mapping[str, Any]
RunArm = Callable[[str, int], Awaitable[Result]]
"""Runs an arm with a seed to its end."""


class State:
    """Results so far; `document` is what the file holds."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self._path = path
        self.document = document

    @property
    def results(self) -> dict[str, Result]:
        """Those of a study, by `<arm>/<seed>`."""
        return self.document["results"]

    def missing(self, arms: Iterable[str], seeds: Iterable[int]) -> list[tuple[str, int]]:
        """Arms and seeds without a result: all arms of a seed, then those of the next."""
        return [(arm, seed) for seed, arm in product(seeds, list(arms)) if _place(arm, seed) not in self.results]

    async def add(
        self, missing: Iterable[tuple[str, int]], run: RunArm, shown: Callable[[Result], object] | None = None
    ) -> None:
        """Run arms in turn, and write each result as soon as it is there.

        Args:
            missing: Arms and seeds.
            run: What it returns is kept: JSON values.
            shown: What the log tells of a result; without it, all that is neither a list nor a mapping.
        """
        for arm, seed in missing:
            began = time.monotonic()
            found = await run(arm, seed)
            self.results[_place(arm, seed)] = found
            self.save()
            log.info("%s, seed %d (%.0f s): %s", arm, seed, time.monotonic() - began, (shown or _scalars)(found))

    def save(self) -> None:
        """Write the file; one that was there is whole until the new one is."""
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(json.dumps(self.document, indent=2) + "\n")
        beside.replace(self._path)


def add_state_option(parser: argparse.ArgumentParser, default: str) -> None:
    """`--state PATH`."""
    parser.add_argument("--state", type=Path, default=Path(default), help="results so far")


def open_state(parser: argparse.ArgumentParser, path: Path, chosen: Mapping[str, Any], *kept: str) -> State:
    """Read the file, or begin one that is written with the first result.

    Args:
        parser: Ends the program with exit code 2 if the file's results were measured with another choice.
        path: The file.
        chosen: What all results depend on, by its names in the file; JSON values.
        kept: Names of the mappings in the file that hold what was measured.
    """
    if not path.exists():
        return State(path, {**chosen, **{name: {} for name in kept}})
    document = json.loads(path.read_text())
    there = {name: document.get(name) for name in chosen}
    if there != chosen:
        parser.error(f"{path} holds results with {there}, not with {dict(chosen)}: choose the same, or another file")
    return State(path, document)


def _place(arm: str, seed: int) -> str:
    return f"{arm}/{seed}"


def _scalars(found: Result) -> dict[str, Any]:
    return {key: value for key, value in found.items() if not isinstance(value, (list, Mapping))}
