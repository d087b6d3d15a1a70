"""What all sections of a run's parameters have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Of names that become parts of keys in the store, and of addresses."""


class Section(BaseModel):
    """A section: frozen, without fields that nobody knows, and without infinite numbers, which JSON does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
