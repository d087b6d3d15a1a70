"""The pools of a task set, as its curation names them, and what a task of each was when its version was made."""

from __future__ import annotations

from collections.abc import Mapping

MEANING: Mapping[str, str] = {
    "useful": "in the target band when its version was curated",
    "unmeasured": "not measured before its version was published",
    "too_hard": "solved too rarely then",
    "too_easy": "solved too often then",
}
