"""What all sections of a run's parameters have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section: frozen, and without fields that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)
