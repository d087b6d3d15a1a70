"""What is told of the pools of a task set, by the names that its curation gives them."""

from __future__ import annotations

from collections.abc import Mapping

_WAS: Mapping[str, str] = {
    "useful": "in the target band when its version was curated",
    "unmeasured": "not measured before its version was published",
    "too_hard": "solved too rarely then",
    "too_easy": "solved too often then",
}
SUCCESS: Mapping[str, str] = {
    pool: f"Success on the batch's groups whose task was {was}." for pool, was in _WAS.items()
}
SHARE: Mapping[str, str] = {pool: f"Share of the batch's groups that come from the pool `{pool}`." for pool in _WAS}
