"""How long it takes to collect the same episodes in several ways, from lockstep to everything that Driftline does.

    python -m benchmarks.rollout_ladder --state ladder.json [--repeats 5] [--plots docs/images] [--json figures.json]

Each arm plays the same trace on the same real vLLM engine, which has one processor; whoever collects has the other.
Arms go in turn, a repeat at a time. `wall_clock_s` is from the first episode's start to the moment at which the
trainer's side holds the last batch. The trainer takes no time, and once more, at a lead of one batch, as long for a
batch as arm (b) takes to collect one: `trainer_wait_s` is how long it then waits for a batch, in the mean. The first
batch, for which nothing can have been done before, is left out of it for all arms (`first_batch_s`).

| arm | what it is |
|---|---|
| a0 | lockstep: the batch generates a turn together, then its environments step one after the other |
| a | lockstep, the environments in parallel |
| b | a coroutine for each episode, a barrier at the end of each batch |
| c | Driftline's collector, free-running over batches, at most the lead ahead; batches by the groups' numbers |
| d | c, and prefixes are reused |
| e | c, and the longest predicted go first |
| f | c, and as many in flight as the engine bears |
| g | c, and two surplus members a group |
| h | c, and batches of what is finished first: unfinished groups are carried over |
| i | all of them |

All arms have the same slots, tasks, seeds and requests, and deliver the same members: the script fails if not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import add_json_option, log_progress, write
from benchmarks.ladder_arms import ARMS, GROUPS, GROUPS_A_BATCH, SLOTS, Ladder, Outcome, parameters
from benchmarks.ladder_baselines import Delivered
from benchmarks.ladder_table import plot, summarise, table
from benchmarks.local_run import host_engine
from benchmarks.state import State, add_state_option, open_state
from tests.support.seaweed import running_seaweed

log = logging.getLogger("rollout-ladder")


def figures_of(outcome: Outcome, same: float) -> dict[str, Any]:
    """What is kept of one arm, once.

    `length_bias` is tokens of a delivered member over tokens of an episode that was begun, less one; `halfway`, of a
    member in the first half that was delivered over all members.
    """
    tokens = [one.tokens for one in outcome.members]
    half = tokens[: len(tokens) // 2]
    return {
        "wall_clock_s": outcome.wall_clock_s,
        "trainer_wait_s": statistics.fmean(outcome.waits_s[1:]),
        "first_batch_s": outcome.waits_s[0],
        "cache_hit_share": outcome.cache_hit_share,
        "length_bias": statistics.fmean(tokens) / outcome.generated_mean - 1.0,
        "length_bias_halfway": statistics.fmean(half) / statistics.fmean(tokens) - 1.0,
        "sampled_tokens": sum(tokens),
        "same_tokens_share": same,
    }


def same_share(members: Sequence[Delivered], reference: Mapping[tuple[int, int], Any]) -> float:
    """Share of the members whose tokens are those of the first arm; others differ by the sums of a batch's shape."""
    return sum(reference[one.group, one.member] == one.turns for one in members) / len(members)


async def carry_out(given: argparse.Namespace, state: State) -> None:
    """Play what is not done yet: a repeat of all arms after the other."""
    with tempfile.TemporaryDirectory(prefix="driftline-ladder-") as name, running_seaweed(Path(name)) as seaweed:
        host_engine(parameters("c", 0).engine, seaweed, Path(name))
        ladder = Ladder(seaweed, Path(name), given.lead_batches)
        try:
            await ladder.begin()
            for trace in given.traces:
                await play_trace(ladder, trace, given, state)
        finally:
            await ladder.close()


async def play_trace(ladder: Ladder, trace: str, given: argparse.Namespace, state: State) -> None:
    """All repeats of all arms over one trace, and the bound."""
    found = state.document["traces"].setdefault(trace, {"arms": {}, "balanced": {}, "pictures": {}})
    if "bound" not in found:
        await ladder.play("b", trace, 0.0)  # what is computed for the first time costs more
        found["bound"] = asdict(await ladder.bound(trace))
    reference: dict[tuple[int, int], Any] = {}
    for balanced in (False, True):
        for repeat in range(given.repeats):
            # To and fro, so that what drifts over a repeat does no arm a favour.
            for arm in given.arms if repeat % 2 == 0 else reversed(given.arms):
                if balanced and arm not in given.balanced:
                    continue
                kept = found["balanced" if balanced else "arms"].setdefault(arm, [])
                if len(kept) > repeat:
                    continue
                outcome = await ladder.play(arm, trace, train_seconds(found) if balanced else 0.0)
                reference = reference or {(one.group, one.member): one.turns for one in outcome.members}
                kept.append(figures_of(outcome, same_share(outcome.members, reference)))
                found["pictures"].setdefault(arm, outcome.requests)
                state.save()
                log.info("%s %s %d%s: %s", trace, arm, repeat, " balanced" if balanced else "", kept[-1])


def train_seconds(found: Mapping[str, Any]) -> float:
    """As long as arm (b) takes to collect a batch."""
    return statistics.median(one["wall_clock_s"] for one in found["arms"]["b"]) * GROUPS_A_BATCH / GROUPS


def main() -> None:
    """Play the arms that lack, print the table, draw the timelines."""
    log_progress()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", nargs="+", default=["published_tail", "pointer_chase"])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--balanced", nargs="*", default=list(ARMS), choices=ARMS, help="arms for the trainer's wait")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lead-batches", type=int, default=3, help="where the trainer takes no time")
    add_state_option(parser, "rollout-ladder.json")
    parser.add_argument("--plots", type=Path, default=None, help="directory for the timelines")
    add_json_option(parser)
    given = parser.parse_args()
    chosen = {"lead_batches": given.lead_batches, "slots": SLOTS}
    state = open_state(parser, given.state, chosen, "traces")
    asyncio.run(carry_out(given, state))
    traces = state.document["traces"]
    rows = {trace: summarise(found) for trace, found in traces.items()}
    for trace, arms in rows.items():
        print(f"\n{trace}\n\n{table(arms)}")
    write({**chosen, "traces": rows}, given.json)
    if given.plots is not None:
        for trace, found in traces.items():
            plot(found["pictures"], given.plots / f"rollout-ladder-{trace}.png")


if __name__ == "__main__":
    main()
