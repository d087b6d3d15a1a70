"""How often the current policy solves the candidates: asked of a run under way, or of a bounded rollout."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from driftline.refresh import solving
from driftline.refresh.solving import SolveRate
from driftline.store import tasksets
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult, tokens_of
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from tasks.refresh_plan import RefreshPlan
from tasks.refresh_stages import Candidates, Measured, cached, to_measure

logger = logging.getLogger(__name__)

POLL_S = 2.0
CANDIDATES_SUFFIX = "-candidates"
"""Of the name under which the tasks of probe groups are kept."""

PlayRequest = Callable[[ProbeRequest], Awaitable[None]]
"""Plays a request in a bounded rollout, to its end."""


async def measure(store: ObjectStore, plan: RefreshPlan, candidates: Candidates, play: PlayRequest) -> Measured:
    """Solve rates by task: of the run's last steps, and of probe groups that play candidates.

    A run under way has its cells play them. Where none is, or where it ends before they are all played, `play` does.
    What is not measured by `measure_deadline_s` counts as unmeasured.
    """
    wanted = to_measure(plan, candidates)
    if plan.run is None:
        return Measured({}, 0, "no run has a policy for these tasks yet")
    run, recorded = plan.run, f"groups of the last {plan.options.recent_steps} steps of run {plan.run}"
    if not wanted:
        return Measured(plan.rates, 0, recorded)

    async def make() -> Measured:
        name = f"{plan.task_set}{CANDIDATES_SUFFIX}"
        version = await asyncio.to_thread(tasksets.publish, store, name, wanted)
        ids = tuple(task.id for task in wanted)
        request = ProbeRequest(plan.id, run, name, version, ids, plan.options.probe_members)
        results = await _results(store, request, play, plan.options.measure_deadline_s)
        rates = solving.merged(plan.rates, rates_of(results))
        return Measured(rates, tokens_of(results), f"{recorded}, and {len(results)} of {len(ids)} probe groups")

    return await cached(store, "measured", (plan.id, [task.id for task in wanted]), Measured, make)


def rates_of(results: Sequence[ProbeResult]) -> dict[str, SolveRate]:
    """Task id -> solve rate over probe groups."""
    return solving.merged(*({result.task_id: SolveRate(result.attempts, result.solved)} for result in results))


async def _results(
    store: ObjectStore, request: ProbeRequest, play: PlayRequest, deadline_s: float
) -> Sequence[ProbeResult]:
    """Have a request played; returns what came of it by its deadline, nothing where the cells play no probe groups.

    Another refresh with the same run takes the cells with its own request; this one goes on when that is closed.
    """
    run_store, book = RunStore(store, request.run), ProbeBook(store, request.run)
    began = time.monotonic()
    described = await asyncio.to_thread(run_store.describe)
    cells_play = described.parameters.get("rollout", {}).get("probe_episodes") != 0
    await asyncio.to_thread(book.post, request)
    deadline = asyncio.timeout(deadline_s)
    try:
        async with deadline:
            while len(await asyncio.to_thread(book.finished, request)) < len(request.task_ids):
                head, _ = await asyncio.to_thread(run_store.read_head)
                if head.state != "running":
                    await play(request)
                    break
                if not cells_play:
                    logger.warning(
                        "the cells of run %s play no probe groups: rollout.probe_episodes is 0", request.run
                    )
                    break
                await asyncio.to_thread(book.reopen, request)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        if not deadline.expired():
            raise  # a deadline of what plays, which says nothing of this one
        logger.warning("not all of %d probe groups were played within %g s", len(request.task_ids), deadline_s)
    finally:
        await asyncio.to_thread(book.close, request)
    results = await asyncio.to_thread(book.results, request)
    logger.info("%d probe groups in %.0f s", len(results), time.monotonic() - began)
    return results
