"""How a batch of sequences of very different lengths becomes micro-batches.

Sequences are sorted by length, so that neighbours pad one another little, and cut into contiguous micro-batches of
at most a budget of padded tokens, at the cuts that cost least. Everything is deterministic: every rank makes the
same plan from the same lengths, and takes its own share.
"""

from __future__ import annotations

from collections.abc import Sequence

MICRO_BATCH_OVERHEAD_TOKENS = 96
"""What one more micro-batch costs, in tokens: its fixed cost over the cost of one token."""

MicroBatchPlan = tuple[int, ...]
"""Indices of the sequences of one micro-batch; empty where a rank only keeps step with the others."""


def cut(lengths: Sequence[int], budget: int, overhead: int = MICRO_BATCH_OVERHEAD_TOKENS) -> list[MicroBatchPlan]:
    """Cut sequences into micro-batches of least cost: padded tokens, plus `overhead` for each micro-batch.

    Args:
        lengths: Tokens of each sequence, in the order of (group, member), which breaks ties.
        budget: Most padded tokens in a micro-batch; a longer sequence is a micro-batch by itself.
        overhead: Fixed cost of a micro-batch, in tokens.

    Returns:
        Micro-batches from the shortest sequences to the longest; each index occurs once.
    """
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    best = [0.0] + [float("inf")] * len(order)
    start_of = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        longest = lengths[order[end - 1]]
        for start in range(end - 1, -1, -1):
            padded = (end - start) * longest
            if padded > budget and end - start > 1:
                break
            cost = best[start] + padded + overhead
            if cost < best[end]:
                best[end], start_of[end] = cost, start
    plans: list[MicroBatchPlan] = []
    end = len(order)
    while end > 0:
        plans.append(tuple(order[start_of[end] : end]))
        end = start_of[end]
    return plans[::-1]


def padded_tokens(plan: MicroBatchPlan, lengths: Sequence[int]) -> int:
    """Tokens of a micro-batch, padding included."""
    return len(plan) * max((lengths[index] for index in plan), default=0)


def share(plans: Sequence[MicroBatchPlan], lengths: Sequence[int], ranks: int) -> list[list[MicroBatchPlan]]:
    """Deal micro-batches to ranks: the same number to each, about the same tokens, the n-th ones of like size.

    Collectives of ZeRO run inside every micro-batch, so a rank without work for its turn gets an empty one.

    Returns:
        One list of micro-batches for each rank, all of the same length.
    """
    turns = -(-len(plans) // ranks)
    shares: list[list[MicroBatchPlan]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for plan in sorted(plans, key=lambda plan: (-padded_tokens(plan, lengths), plan)):
        rank = min((r for r in range(ranks) if len(shares[r]) < turns), key=lambda r: (load[r], r))
        shares[rank].append(plan)
        load[rank] += padded_tokens(plan, lengths)
    for own in shares:
        own.extend(() for _ in range(turns - len(own)))
    return shares
