"""Store time and requests are those of one step, not of the run."""

from __future__ import annotations

from itertools import count
from typing import Any

from driftline.accounts import TERMS, TokenLedger
from driftline.store.memory import MemoryStore
from driftline.tracking import metrics
from driftline.training.store_use import StoreUse


def test_what_was_taken_is_not_taken_again():
    ticks, nothing = count(), dict[str, Any].fromkeys(TERMS, 0)
    use = StoreUse(MemoryStore(), [], monotonic=lambda: float(next(ticks)))
    ledger = TokenLedger(generated=0, **nothing, cancelled_by={}, incarnations=())
    with use.publishing():
        use.store.put("a", b"")
    with use.committing():
        use.store.put("b", b"")
    first, second = use.take(0.5, ledger), use.take(0.25, ledger)
    assert (first[metrics.STORE_PUBLISH_SECONDS], first[metrics.STORE_COMMIT_SECONDS]) == (1.0, 3.0)
    assert (first[metrics.STORE_SECONDS], first[metrics.STORE_REQUESTS]) == (4.5, 2.0)
    assert (second[metrics.STORE_SECONDS], second[metrics.STORE_REQUESTS]) == (0.25, 0.0)
