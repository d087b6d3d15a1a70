"""The age of a trajectory's tokens, in policy versions (one optimizer step makes one version)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Age:
    """Versions between generation and training; `total == in_flight + in_queue`."""

    total: int
    """From the version that sampled the first token to the version trained from."""
    in_flight: int
    """Versions that came out while the trajectory was being generated."""
    in_queue: int
    """Versions that came out after its last token and before it was trained on."""


def age(trained_from_version: int, first_token_version: int, last_token_version: int) -> Age:
    """Split a trajectory's lag.

    Tokens newer than the version trained from (an engine may run ahead of a resumed trainer) count as new.
    """
    first = min(first_token_version, trained_from_version)
    last = min(max(last_token_version, first), trained_from_version)
    return Age(trained_from_version - first, last - first, trained_from_version - last)
