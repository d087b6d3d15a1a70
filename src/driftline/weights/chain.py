"""When a version travels as a delta, and when as an anchor. Pure; imports no torch.

A late reader fetches the newest anchor and every delta after it. An anchor is due when that, with the delta at
hand, would cost more than `factor` times what a new anchor costs, or when the delta saves too little. So the chain's
length follows from the sizes: at 1.5% a delta and a factor of 2, about 60 deltas; in a run that changes nearly
everything, none. The trainer's own uploads then cost at most `1 + 1 / (factor - 1)` times the deltas' bytes.
"""

from __future__ import annotations

from dataclasses import replace

from driftline.records import Chain

FACTOR = 2.0
REQUEST_BYTES = 64 * 2**10
"""What a request costs a reader, in bytes that it could fetch meanwhile."""
REQUESTS = 2
"""Requests a version takes: its manifest and one object."""

WORTHWHILE = 0.75
"""Largest delta, as a share of an anchor: what it saves must pay for the longer chain and for applying it."""


def reader_cost(chain: Chain) -> float:
    """What a reader without any version pays for a chain, in bytes."""
    requests = REQUESTS * (1 + chain.deltas)
    return chain.anchor_bytes + chain.delta_bytes + requests * REQUEST_BYTES


def extended(chain: Chain, delta_bytes: int) -> Chain:
    """The chain with one more delta."""
    return replace(chain, deltas=chain.deltas + 1, delta_bytes=chain.delta_bytes + delta_bytes)


def anchor_due(chain: Chain, delta_bytes: int, factor: float = FACTOR) -> str:
    """Why the next version must be an anchor, or nothing where a delta of so many bytes may follow the chain."""
    if delta_bytes > WORTHWHILE * chain.anchor_bytes:
        return f"a delta of {delta_bytes} bytes saves too little of an anchor's {chain.anchor_bytes}"
    cost, anchor = reader_cost(extended(chain, delta_bytes)), reader_cost(Chain(chain.anchor_bytes))
    if cost > factor * anchor:
        return f"with it a late reader would pay {cost / anchor:.2f} times an anchor, {factor:g} is allowed"
    return ""
