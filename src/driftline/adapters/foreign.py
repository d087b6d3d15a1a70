"""What every adapter needs of a package that is not this project's: its module, its version, and a name for ids."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from driftline.errors import ConfigurationError

NAMED = re.compile(r"(?P<name>.+)/v1")
NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_./-]+")


def required(module: str, extra: str) -> Any:
    """Import the module of an extra.

    Raises:
        ConfigurationError: It is not installed; the message says how to.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"environments {extra}/... need the package {extra} ({error}): pip install 'driftline[{extra}]'"
        ) from None


def name_in(adapter: str, rest: str) -> str:
    """What stands between the adapter and the version in `<adapter>/<name>/v1`.

    Raises:
        ConfigurationError: There is no name, or another version; other versions are made in a module.
    """
    found = NAMED.fullmatch(rest)
    if found is None:
        raise ConfigurationError(
            f"no environment '{adapter}/{rest}': write {adapter}/<name>/v1, or make it in a module of your own and "
            "name that by dotted path (docs/environments.md)"
        )
    return found["name"]


def id_of(adapter: str, name: str, version: int) -> str:
    """A versioned id; the name may have parts (`ALE/Pong-v5`). What an id cannot have is replaced in it."""
    parts = (part.strip("-") for part in NOT_IN_IDS.sub("-", name).split("/"))
    return "/".join((adapter, *(part for part in parts if part), f"v{version}"))


def as_json(what: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a task's state, as JSON gives it back: tuples are lists.

    Raises:
        ConfigurationError: It has what JSON does not.
    """
    try:
        return json.loads(json.dumps(dict(value)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{what} is part of a task's state, so JSON values alone ({error})") from None


def versions_of(*modules: str) -> dict[str, str]:
    """Distribution -> version, of those that provide the modules (dotted names; the first part counts).

    A module that no distribution provides, one of a checkout, is not there: its tasks do not know its version.
    """
    providers = _providers()
    names = {name for module in modules for name in providers.get(module.partition(".")[0], ())}
    return {name: _version(name) for name in sorted(names)}


@cache
def _providers() -> Mapping[str, list[str]]:
    """Top-level module -> distributions. To read them all takes a tenth of a second."""
    return metadata.packages_distributions()


@cache
def _version(name: str) -> str:
    return metadata.version(name)
