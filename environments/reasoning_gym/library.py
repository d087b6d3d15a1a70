"""The one place that imports reasoning-gym, when it is first needed.

    entries("maze", level=None, seed=1, count=3)      entries as JSON values: question, answer, metadata

Datasets that depend on PYTHONHASHSEED, or on the global random state, are generated in a process of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from importlib import metadata
from types import ModuleType
from typing import Any

from driftline.environment.apart import run_apart
from driftline.errors import ConfigurationError, EnvironmentFailed
from environments.reasoning_gym.datasets import APART, DEFAULTS, LEVELS, REFUSED, TOO_DEAR, UNANSWERED, VERSION

CHILD = "environments.reasoning_gym.generate_apart"
CHILD_DEADLINE_S = 900.0
KEPT = 32
"""Answers of that process."""
CHUNK = 500
"""Entries of one seed; entry i of a dataset is drawn from its seed plus i."""
LARGEST_TERM = 1000
"""Beyond it `number_sequence` finds a sequence uninteresting."""
FRUITLESS = 200
"""So many entries in a row that are there already, and the dataset has no more."""

Entry = dict[str, Any]


@cache
def reasoning_gym() -> Any:
    """The package.

    Raises:
        ConfigurationError: It is not installed, or not in the version that the tasks are defined by.
    """
    remedy = f"install it with: pip install 'driftline[reasoning-gym]' (reasoning-gym=={VERSION})"
    try:
        found = metadata.version("reasoning-gym")
        if found != VERSION:
            raise ConfigurationError(f"reasoning-gym is {found}, and other versions make other tasks: {remedy}")
        _do_without("pycosat")
        found = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ConfigurationError(f"environments reasoning_gym/... need reasoning-gym ({error}): {remedy}") from None
    _bound_terms()
    return found


def _do_without(module: str) -> None:
    """Let the package be imported without a module that only a dataset uses which is left out."""
    if module not in sys.modules and importlib.util.find_spec(module) is None:
        sys.modules[module] = ModuleType(module)


@cache
def _bound_terms() -> None:
    """Have `number_sequence` refuse a term that is too large when it comes up.

    It looks at the terms when it has all of them; a rule that squares several times a term makes numbers of billions
    of digits until then. What it makes stays the same: an OverflowError has it draw the next rule, as its look does.
    """
    rule: Any = importlib.import_module("reasoning_gym.cognition.number_sequences").PatternRule
    apply = rule.apply

    def bounded(self: Any, sequence: list[int], position: int) -> int:
        term: int = apply(self, sequence, position)
        if abs(term) > LARGEST_TERM:
            raise OverflowError(f"a term of {term.bit_length()} bits")
        return term

    rule.apply = bounded


def entries(dataset: str, *, level: int | None, seed: int, count: int) -> list[Entry]:
    """Return `count` entries that differ in their question; a function of the arguments.

    Args:
        dataset: Name of the dataset.
        level: Of its curriculum; None is the dataset's own defaults.
        seed: Any number.
        count: How many.

    Raises:
        ConfigurationError: There is no such level, or it has not so many entries.
    """
    if level is not None and not 0 <= level < LEVELS[dataset]:
        raise ConfigurationError(f"{dataset} has no level {level}: 0 to {LEVELS[dataset] - 1}")
    if dataset in APART:
        return json.loads(_apart(dataset, level, seed, count))
    return generate(dataset, level=level, seed=seed, count=count)


def generate(dataset: str, *, level: int | None, seed: int, count: int) -> list[Entry]:
    """As `entries`, in this process: under its hash seed, and for some datasets with its global random state."""
    found: dict[str, Entry] = {}
    fruitless = 0
    for entry in _stream(dataset, level, seed):
        if len(found) == count:
            break
        if entry["question"] in found:
            fruitless += 1
        else:
            found[entry["question"]], fruitless = entry, 0
        if fruitless == FRUITLESS:
            at = "" if level is None else f" at level {level}"
            raise ConfigurationError(f"{dataset} has about {len(found)} tasks{at}, not {count}: ask for fewer")
    return list(found.values())


@cache
def scorer(dataset: str) -> Any:
    """A dataset that scores entries of any level."""
    return reasoning_gym().create_dataset(dataset, seed=0, size=1)


def _stream(dataset: str, level: int | None, seed: int) -> Iterator[Entry]:
    base = int.from_bytes(sha256(f"{dataset}:{level}:{seed}".encode()).digest()[:4], "big") // 2
    for chunk in range(2**16):
        source = _dataset(dataset, level, base + chunk * CHUNK)
        for index in range(CHUNK):
            _seed_global_state(dataset, base + chunk * CHUNK + index)
            entry = source[index]
            if dataset in UNANSWERED and UNANSWERED[dataset] in entry["answer"]:
                continue
            # Source fields say where in the stream it is: the same question elsewhere is the same task.
            told = {key: value for key, value in entry["metadata"].items() if not key.startswith("source_")}
            yield json.loads(json.dumps({**entry, "metadata": told}, default=_plain))


def _dataset(dataset: str, level: int | None, seed: int) -> Any:
    library = reasoning_gym()
    if level is None:
        return library.create_dataset(dataset, seed=seed, size=CHUNK, **DEFAULTS.get(dataset, {}))
    factory: Any = importlib.import_module("reasoning_gym.factory")
    refused = REFUSED.get(dataset, frozenset()) | TOO_DEAR.get(dataset, frozenset())
    curriculum = factory.create_curriculum(dataset)
    level = [one for one in range(level + len(refused) + 1) if one not in refused][level]
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
    configuration = curriculum.generate_configuration({"seed": seed, "size": CHUNK, **DEFAULTS.get(dataset, {})})
    return factory.DATASETS[dataset][0](config=configuration)


def _seed_global_state(dataset: str, seed: int) -> None:
    """Some datasets draw from it: in their own process, where it is nobody else's."""
    if dataset in APART:
        import random

        import numpy as np

        random.seed(seed)
        np.random.seed(seed % 2**32)


def _plain(value: Any) -> Any:
    """What is not JSON: NumPy's numbers and arrays, sets, objects that say what they are."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


@lru_cache(maxsize=KEPT)
def _apart(dataset: str, level: int | None, seed: int, count: int) -> str:
    """Entries as JSON, out of a process with a fixed hash seed; starting one takes seconds, so some are kept."""
    reasoning_gym()
    request = {"dataset": dataset, "level": level, "seed": seed, "count": count}
    try:
        found = run_apart(CHILD, request, hash_seed="0", timeout_s=CHILD_DEADLINE_S)
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"{request} could not be generated: {error}") from None
    if "error" in found:
        raise ConfigurationError(found["error"])
    return json.dumps(found["entries"])
