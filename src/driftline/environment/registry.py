"""How a family is found: by its versioned id, in the checkout or in an installed package, or by its dotted path."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from driftline.environment.contract import TaskFamily
from driftline.environment.mixture import Mixture, Part, named_parts
from driftline.errors import ConfigurationError

ENTRY_POINT_GROUP = "driftline.environments"
REGISTRY_MODULE = "environments"

ADAPTERS: Mapping[str, str] = {
    "gymnasium": "driftline.adapters.gymnasium",
    "openenv": "driftline.adapters.openenv",
    "verifiers": "driftline.adapters.verifiers",
}
"""First part of an id -> the module whose `named` makes the family of the rest. Imported when one is named."""

VERSION = re.compile(r"/v[1-9][0-9]*$")
"""The end of an id."""

MEMBERS = ("id", "alphabet", "stop", "generate", "make", "oracle", "demonstrate")
"""Of a `TaskFamily`."""

MOST_NAMED = 12
"""Of known ids, one by one, to somebody whose id is not known. Of more, the families are named."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A family that is known by its id."""

    id: str
    found_in: str
    """`environments` for the working directory's package, else the entry point."""
    load: Callable[[], TaskFamily]


def registered() -> dict[str, Registered]:
    """Every family that is known by its id, by id; those of the working directory win over installed ones.

    Installed ones are not imported before they are loaded.
    """
    known = {
        point.name: Registered(point.name, f"{point.value} (entry point)", lambda point=point: _family(point.load()))
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP)
    }
    for name, found in _local().items():
        known[name] = Registered(name, REGISTRY_MODULE, lambda found=found: _family(found))
    return dict(sorted(known.items()))


def resolve(name: str) -> TaskFamily:
    """Find a task family by versioned id or by dotted path (`package.module:Attribute`), or several as one.

    `a/v1 * 3 + b/v1` is the mixture of both with three tasks of the one to one of the other.

    Looks in the `environments` package of the working directory, then among the entry points of the group
    `driftline.environments`; an id that begins with an adapter's name and is found in neither is made by the adapter.

    Raises:
        ConfigurationError: Nothing is registered under `name`; the message names the closest id.
    """
    parts = named_parts(name)
    if len(parts) > 1:
        return Mixture(tuple(Part(part, resolve(part), share) for part, share in parts))
    [(name, _)] = parts
    adapter, _, rest = name.partition("/")
    if ":" in name and adapter not in ADAPTERS:
        return _from_path(name)
    known = registered()
    if name in known:
        return known[name].load()
    if adapter in ADAPTERS:
        return importlib.import_module(ADAPTERS[adapter]).named(rest)
    raise ConfigurationError(f"no environment {name!r}: {_hint(name, known)}")


def _hint(name: str, known: Mapping[str, Registered]) -> str:
    """What to do about a name that is not known."""
    bare = VERSION.sub("", name)
    if bare != name and bare in known:
        return (
            f"{bare!r} is registered without a version ({known[bare].found_in}): register it under the versioned id, "
            f'as in `"{name}" = "package.module:Class"` (entry points of the group {ENTRY_POINT_GROUP!r})'
        )
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    if len(known) <= MOST_NAMED:
        return f"known: {', '.join(known) or 'none'}"
    families = Counter(one.partition("/")[0] for one in known)
    named = ", ".join(f"{family}/... ({count})" for family, count in families.items())
    return f"known: {named}; `driftline environments list` names each"


def has_local() -> bool:
    """Whether the working directory has families of its own: a package `environments`."""
    return importlib.util.find_spec(REGISTRY_MODULE) is not None


def missing_members(family: object) -> list[str]:
    """What a family lacks of `TaskFamily`."""
    return [member for member in MEMBERS if not hasattr(family, member)]


def _from_path(path: str) -> TaskFamily:
    module, _, attribute = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"no environment at {path!r} ({error}): give package.module:Class") from None
    return _family(found)


def _family(found: Any) -> TaskFamily:
    """The family that a class or an instance stands for."""
    try:
        return found() if isinstance(found, type) else found
    except TypeError as error:
        raise ConfigurationError(f"{found.__name__}() needs arguments: name an instance ({error})") from None


def _local() -> Mapping[str, Any]:
    try:
        local = importlib.import_module(REGISTRY_MODULE)
    except ModuleNotFoundError as error:
        if error.name != REGISTRY_MODULE:
            raise
        return {}
    return dict(local.FAMILIES)
