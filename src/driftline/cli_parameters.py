"""A run's parameters as a command line gives them: read, merged, and checked before anything starts.

given = read(["training.steps=40", "overlap.lead_groups=0"])     # {"training": {"steps": 40}, ...}
params = check(merged(of_the_deployment, given))
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from driftline.environment import resolve
from driftline.errors import ConfigurationError
from driftline.params import RunParameters

EXAMPLE = "training.steps=40"
WHOLE = "params"
"""Name that Prefect's own command line gives them under, taken as well: `params='{"seed": 1}'`."""


def read(given: Sequence[str]) -> dict[str, Any]:
    """The nested values of `section.name=value`; a value is JSON, else text. A later one goes before an earlier one.

    Raises:
        ConfigurationError: One has no name or no value, or goes into what another gave as no section.
    """
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        path = name.strip().split(".")
        if not equals or not all(path):
            raise ConfigurationError(f"--param {one}: give a name and a value, as in --param {EXAMPLE}")
        path = path[1:] if path[0] == WHOLE else path
        nested: Any = _value(value)
        for part in reversed(path):
            nested = {part: nested}
        if not isinstance(nested, dict):
            raise ConfigurationError(f"--param {one}: give a JSON object, or single values as in --param {EXAMPLE}")
        found = merged(found, cast(dict[str, Any], nested))
    return found


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `given` over those of `base`, section by section."""
    found = dict(base)
    for name, value in given.items():
        before = found.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[name] = merged(cast(Mapping[str, Any], before), cast(Mapping[str, Any], value)) if both else value
    return found


def check_each(values: Mapping[str, Any]) -> None:
    """See whether every one is a parameter and a value that it can have by itself, whatever the others are.

    Raises:
        ConfigurationError: As of `check`.
    """
    try:
        RunParameters.model_validate(values)
    except ValidationError as error:
        alone = [found for found in error.errors() if found["type"] != "value_error"]
        if alone:
            raise ConfigurationError("\n".join(map(_line, alone))) from None


def check(values: Mapping[str, Any]) -> RunParameters:
    """The parameters of a run, if it can have them as far as this machine knows.

    Raises:
        ConfigurationError: A line for each thing that is wrong: the parameter's name, what is wrong, the remedy.
    """
    try:
        params = RunParameters.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("\n".join(map(_line, error.errors()))) from None
    try:
        _ = resolve(params.environment.id).stop
    except ConfigurationError as error:
        raise ConfigurationError(f"environment.id: {error}") from None
    if params.model.directory is not None:
        from driftline.training.base_model import check_model_directory

        check_model_directory(Path(params.model.directory))
    return params


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _line(error: Any) -> str:
    """What is wrong, in one line. Those of our own validators begin with the parameter's name."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        return f"{name}: there is no such parameter: {_hint(name)}"
    return f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}, not {json.dumps(error['input'], default=str):.80}"


def _hint(name: str) -> str:
    """The parameter that was meant, else those of its section."""
    section, _, last = name.rpartition(".")
    known = list(_names(RunParameters))
    beside = (
        [one for one in known if one.rpartition(".")[0] == section] if section else list(RunParameters.model_fields)
    )
    by_last: dict[str, list[str]] = {}
    for one in beside if section else dict.fromkeys([*beside, *known]):
        by_last.setdefault(one.rpartition(".")[2], []).append(one)
    close = difflib.get_close_matches(last, by_last, n=1, cutoff=0.6)
    meant = [one for one in known if one.rpartition(".")[2] == last] or (by_last[close[0]] if close else [])
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else f"known: {', '.join(beside)}"


def _names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of all parameters."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _names(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
